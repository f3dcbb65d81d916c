"""Conversion of a GraphItem's fields to bytes of the message ``autodist.proto.GraphItem``, and back.

This is a file format: GraphItem writes and reads it with `serialize` and `deserialize`. No other module reads the
message.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf import message as protobuf

from autodist_core.errors import CaptureError
from autodist_core.proto import graphitem_pb2
from autodist_core.step.values import Gradient, Joined, Table, Tensor, Variable

_VARIABLE = "type.googleapis.com/autodist.proto.Variable"
_GRAPH_DEF = "type.googleapis.com/tensorflow.GraphDef"
_ELSEWHERE = ("variables", "inputs", "graph_bytes")
"""The fields of a GraphItem that have another name or another form in the message."""
_PARTS = {"gradients": Gradient, "tables": Table, "joined": Joined}
"""The fields that consist of values, whose fields have the same names and types in the message."""


def info(variables: Iterable[Variable], tables: Iterable[Table]) -> graphitem_pb2.GraphItem.Info:
    """Return variables and tables as the message's ``info`` holds them.

    >>> len(info([Variable("w", (3, 2), "float32")], []).variables)
    1
    """
    found = graphitem_pb2.GraphItem.Info(table_initializers=[table.handle for table in tables])
    for variable in variables:
        packed = graphitem_pb2.Variable(**vars(variable)).SerializeToString(deterministic=True)
        found.variables.add(type_url=_VARIABLE, value=packed)
    return found


def serialize(fields: dict[str, Any]) -> bytes:
    """Return the fields of a GraphItem, and its ``grad_target_pairs``, as bytes. Equal fields give equal bytes.

    >>> from autodist_core.step.graph_item import GraphItem
    >>> data = GraphItem((Variable("w", (3, 2), "float32"),)).serialize()
    >>> deserialize(data)["variables"][0].shape
    (3, 2)
    """
    parts = {name: [vars(each) for each in fields[name]] for name in _PARTS}
    message = graphitem_pb2.GraphItem(
        info=info(fields["variables"], fields["tables"]), inputs=map(_input, fields["inputs"]),
        **{name: value for name, value in fields.items() if name not in _ELSEWHERE} | parts,
    )
    if fields["graph_bytes"]:
        message.graph_def.type_url = _GRAPH_DEF
        message.graph_def.value = fields["graph_bytes"]
    return message.SerializeToString(deterministic=True)


def _input(tensor: Tensor) -> dict[str, Any]:
    shape = [-1 if size is None else size for size in tensor.shape or ()]
    return {**vars(tensor), "shape": shape, "unknown_rank": tensor.shape is None}


def deserialize(data: bytes) -> dict[str, Any]:
    """Return the fields of the GraphItem that `serialize` wrote as these bytes.

    >>> deserialize(b"")["variables"]
    ()
    """
    try:
        message = graphitem_pb2.GraphItem.FromString(data)
        variables = [graphitem_pb2.Variable.FromString(packed.value) for packed in message.info.variables]
    except protobuf.DecodeError as error:
        raise CaptureError(f"{len(data)} bytes are not a serialized GraphItem ({error}).") from None
    found = _fields(message)
    for name in ("graph_def", "grad_target_pairs", "info"):
        del found[name]
    for name, kind in _PARTS.items():
        found[name] = tuple(kind(**_fields(each)) for each in found[name])
    found["variables"] = tuple(Variable(**_fields(variable)) for variable in variables)
    inputs = [_fields(tensor) for tensor in message.inputs]
    for each in inputs:
        shape = tuple(None if size < 0 else size for size in each["shape"])
        each["shape"] = None if each.pop("unknown_rank") else shape
    return {**found, "inputs": tuple(Tensor(**each) for each in inputs), "graph_bytes": message.graph_def.value}


def _fields(message: protobuf.Message) -> dict[str, Any]:
    """The fields of a message. What can hold several things is a tuple."""
    found = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    single = str | bool | int | protobuf.Message
    return {name: value if isinstance(value, single) else tuple(value) for name, value in found.items()}
