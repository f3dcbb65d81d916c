# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PSSynchronizer(_message.Message):
    __slots__ = ("reduction_destination", "local_replication", "sync", "staleness", "reduction_destinations", "gathered", "again_within", "wire_dtype", "factor_rows")
    REDUCTION_DESTINATION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    GATHERED_FIELD_NUMBER: _ClassVar[int]
    AGAIN_WITHIN_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FACTOR_ROWS_FIELD_NUMBER: _ClassVar[int]
    reduction_destination: str
    local_replication: bool
    sync: bool
    staleness: int
    reduction_destinations: _containers.RepeatedScalarFieldContainer[str]
    gathered: bool
    again_within: int
    wire_dtype: AllReduceSynchronizer.WireDtype
    factor_rows: int
    def __init__(self, reduction_destination: _Optional[str] = ..., local_replication: bool = ..., sync: bool = ..., staleness: _Optional[int] = ..., reduction_destinations: _Optional[_Iterable[str]] = ..., gathered: bool = ..., again_within: _Optional[int] = ..., wire_dtype: _Optional[_Union[AllReduceSynchronizer.WireDtype, str]] = ..., factor_rows: _Optional[int] = ...) -> None: ...

class AllReduceSynchronizer(_message.Message):
    __slots__ = ("spec", "compressor", "group", "chunk_size", "power_sgd_rank", "bucket_bytes", "wire_dtype", "factor_rows")
    class Spec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AUTO: _ClassVar[AllReduceSynchronizer.Spec]
        NCCL: _ClassVar[AllReduceSynchronizer.Spec]
        RING: _ClassVar[AllReduceSynchronizer.Spec]
    AUTO: AllReduceSynchronizer.Spec
    NCCL: AllReduceSynchronizer.Spec
    RING: AllReduceSynchronizer.Spec
    class Compressor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NoneCompressor: _ClassVar[AllReduceSynchronizer.Compressor]
        HorovodCompressor: _ClassVar[AllReduceSynchronizer.Compressor]
        HorovodCompressorEF: _ClassVar[AllReduceSynchronizer.Compressor]
        PowerSGDCompressor: _ClassVar[AllReduceSynchronizer.Compressor]
    NoneCompressor: AllReduceSynchronizer.Compressor
    HorovodCompressor: AllReduceSynchronizer.Compressor
    HorovodCompressorEF: AllReduceSynchronizer.Compressor
    PowerSGDCompressor: AllReduceSynchronizer.Compressor
    class WireDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        float16: _ClassVar[AllReduceSynchronizer.WireDtype]
        bfloat16: _ClassVar[AllReduceSynchronizer.WireDtype]
    float16: AllReduceSynchronizer.WireDtype
    bfloat16: AllReduceSynchronizer.WireDtype
    SPEC_FIELD_NUMBER: _ClassVar[int]
    COMPRESSOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    POWER_SGD_RANK_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FACTOR_ROWS_FIELD_NUMBER: _ClassVar[int]
    spec: AllReduceSynchronizer.Spec
    compressor: AllReduceSynchronizer.Compressor
    group: int
    chunk_size: int
    power_sgd_rank: int
    bucket_bytes: int
    wire_dtype: AllReduceSynchronizer.WireDtype
    factor_rows: int
    def __init__(self, spec: _Optional[_Union[AllReduceSynchronizer.Spec, str]] = ..., compressor: _Optional[_Union[AllReduceSynchronizer.Compressor, str]] = ..., group: _Optional[int] = ..., chunk_size: _Optional[int] = ..., power_sgd_rank: _Optional[int] = ..., bucket_bytes: _Optional[int] = ..., wire_dtype: _Optional[_Union[AllReduceSynchronizer.WireDtype, str]] = ..., factor_rows: _Optional[int] = ...) -> None: ...
