"""Conversion of a GraphItem's fields to bytes of the message ``autodist.proto.GraphItem``, and back.

This is a file format: GraphItem writes and reads it with `serialize` and `deserialize`. No other module reads the
message.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import message as protobuf

from autodist_core.errors import CaptureError
from autodist_core.proto import graphitem_pb2
from autodist_core.step.values import Gradient, Joined, Table, Tensor, Variable

_VARIABLE = "type.googleapis.com/autodist.proto.Variable"
_GRAPH_DEF = "type.googleapis.com/tensorflow.GraphDef"
# The fields that have the same name and type in the message and in the GraphItem.
_PLAIN = (
    "outputs", "concat_outputs", "examples", "total", "replica", "cross_replica_sums", "cross_replica_gathers",
    "cross_replica_maxima", "targets", "jit_compile", "explicit_seeds", "handed_in",
    "draws_as_one",
)


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


def serialize(
    *, variables: Iterable[Variable], gradients: Iterable[Gradient], inputs: Iterable[Tensor], tables: Iterable[Table],
    joined: Iterable[Joined], graph_bytes: bytes, grad_target_pairs: Mapping[str, str], **plain: Any,
) -> bytes:
    """Return the fields of a GraphItem as bytes. Equal fields give equal bytes.

    >>> from autodist_core.step.graph_item import GraphItem
    >>> data = GraphItem((Variable("w", (3, 2), "float32"),)).serialize()
    >>> deserialize(data)["variables"][0].shape
    (3, 2)
    """
    tables = tuple(tables)
    message = graphitem_pb2.GraphItem(
        grad_target_pairs=grad_target_pairs,
        info=info(variables, tables),
        gradients=[graphitem_pb2.Gradient(**vars(gradient)) for gradient in gradients],
        inputs=[
            graphitem_pb2.Tensor(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=[-1 if size is None else size for size in tensor.shape or ()],
                unknown_rank=tensor.shape is None,
                whole=tensor.whole,
                part=tensor.part,
            )
            for tensor in inputs
        ],
        tables=[graphitem_pb2.Table(**vars(table)) for table in tables],
        joined=[graphitem_pb2.Joined(**vars(each)) for each in joined],
        **{name: plain[name] for name in _PLAIN},
    )
    if graph_bytes:
        message.graph_def.type_url = _GRAPH_DEF
        message.graph_def.value = graph_bytes
    return message.SerializeToString(deterministic=True)


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
    found: dict[str, Any] = {}
    for name in _PLAIN:
        value = getattr(message, name)
        found[name] = value if isinstance(value, str | bool) else tuple(value)
    found["variables"] = tuple(
        Variable(**{**_fields(variable), "shape": tuple(variable.shape)}) for variable in variables
    )
    found["gradients"] = tuple(Gradient(**_fields(gradient)) for gradient in message.gradients)
    found["inputs"] = tuple(
        Tensor(
            tensor.name,
            tensor.dtype,
            None if tensor.unknown_rank else tuple(None if size < 0 else size for size in tensor.shape),
            tensor.whole,
            tensor.part,
        )
        for tensor in message.inputs
    )
    found["joined"] = tuple(Joined(**_fields(each)) for each in message.joined)
    found["tables"] = tuple(Table(**_fields(table)) for table in message.tables)
    found["graph_bytes"] = message.graph_def.value
    return found


def _fields(message: protobuf.Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
