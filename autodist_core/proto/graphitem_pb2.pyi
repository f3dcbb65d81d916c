# mypy: ignore-errors
from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GraphItem(_message.Message):
    __slots__ = ("graph_def", "grad_target_pairs", "info", "gradients", "inputs", "outputs", "concat_outputs", "examples", "total", "cross_replica_sums", "cross_replica_gathers", "targets", "tables", "joined", "replica", "jit_compile", "cross_replica_maxima", "explicit_seeds", "handed_in", "draws_as_one")
    class GradTargetPairsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class Info(_message.Message):
        __slots__ = ("variables", "table_initializers", "savers")
        VARIABLES_FIELD_NUMBER: _ClassVar[int]
        TABLE_INITIALIZERS_FIELD_NUMBER: _ClassVar[int]
        SAVERS_FIELD_NUMBER: _ClassVar[int]
        variables: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
        table_initializers: _containers.RepeatedScalarFieldContainer[str]
        savers: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
        def __init__(self, variables: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ..., table_initializers: _Optional[_Iterable[str]] = ..., savers: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
    GRAPH_DEF_FIELD_NUMBER: _ClassVar[int]
    GRAD_TARGET_PAIRS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CONCAT_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CROSS_REPLICA_SUMS_FIELD_NUMBER: _ClassVar[int]
    CROSS_REPLICA_GATHERS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    JIT_COMPILE_FIELD_NUMBER: _ClassVar[int]
    CROSS_REPLICA_MAXIMA_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_SEEDS_FIELD_NUMBER: _ClassVar[int]
    HANDED_IN_FIELD_NUMBER: _ClassVar[int]
    DRAWS_AS_ONE_FIELD_NUMBER: _ClassVar[int]
    graph_def: _any_pb2.Any
    grad_target_pairs: _containers.ScalarMap[str, str]
    info: GraphItem.Info
    gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    concat_outputs: bool
    examples: str
    total: str
    cross_replica_sums: _containers.RepeatedScalarFieldContainer[str]
    cross_replica_gathers: _containers.RepeatedScalarFieldContainer[str]
    targets: _containers.RepeatedScalarFieldContainer[str]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    joined: _containers.RepeatedCompositeFieldContainer[Joined]
    replica: str
    jit_compile: bool
    cross_replica_maxima: _containers.RepeatedScalarFieldContainer[str]
    explicit_seeds: bool
    handed_in: bool
    draws_as_one: bool
    def __init__(self, graph_def: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., grad_target_pairs: _Optional[_Mapping[str, str]] = ..., info: _Optional[_Union[GraphItem.Info, _Mapping]] = ..., gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., concat_outputs: bool = ..., examples: _Optional[str] = ..., total: _Optional[str] = ..., cross_replica_sums: _Optional[_Iterable[str]] = ..., cross_replica_gathers: _Optional[_Iterable[str]] = ..., targets: _Optional[_Iterable[str]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., joined: _Optional[_Iterable[_Union[Joined, _Mapping]]] = ..., replica: _Optional[str] = ..., jit_compile: bool = ..., cross_replica_maxima: _Optional[_Iterable[str]] = ..., explicit_seeds: bool = ..., handed_in: bool = ..., draws_as_one: bool = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("name", "shape", "dtype", "trainable", "is_sparse", "aggregation", "kind", "handle", "part_of", "axis", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    IS_SPARSE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PART_OF_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    trainable: bool
    is_sparse: bool
    aggregation: str
    kind: str
    handle: str
    part_of: str
    axis: int
    offset: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., trainable: bool = ..., is_sparse: bool = ..., aggregation: _Optional[str] = ..., kind: _Optional[str] = ..., handle: _Optional[str] = ..., part_of: _Optional[str] = ..., axis: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Gradient(_message.Message):
    __slots__ = ("variable", "occurrence", "values", "indices", "weighted", "rows", "alike")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ALIKE_FIELD_NUMBER: _ClassVar[int]
    variable: str
    occurrence: int
    values: str
    indices: str
    weighted: bool
    rows: str
    alike: bool
    def __init__(self, variable: _Optional[str] = ..., occurrence: _Optional[int] = ..., values: _Optional[str] = ..., indices: _Optional[str] = ..., weighted: bool = ..., rows: _Optional[str] = ..., alike: bool = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "unknown_rank", "whole", "part")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_RANK_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    unknown_rank: bool
    whole: bool
    part: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., unknown_rank: bool = ..., whole: bool = ..., part: bool = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("tensor", "how", "axis")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    how: str
    axis: int
    def __init__(self, tensor: _Optional[str] = ..., how: _Optional[str] = ..., axis: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("handle", "keys", "values")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    handle: str
    keys: str
    values: str
    def __init__(self, handle: _Optional[str] = ..., keys: _Optional[str] = ..., values: _Optional[str] = ...) -> None: ...
