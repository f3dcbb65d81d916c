"""The graph editor: the only module that reads, copies and writes the nodes of a GraphDef.

Capture and the kernels add nodes to an `Editor`, which holds nodes by name, in the order in which they were added.
`Editor.graph_def` checks the graph and returns it. Three attributes of this project mark nodes until then: `ORDER`,
`UPDATE` and `BRANCH`. The finished graph does not have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, tensor_pb2

from autodist_core.errors import KernelError
from autodist_core.seams.table import OP_DEF
from autodist_core.step.graph_check import require_order, sources_of
from autodist_core.step.naming import BRANCH, MARKS, ORDER, UPDATE, canonical, is_control, node_of, split, tensor

_ATTRIBUTES: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: attr_value_pb2.AttrValue(b=value),
    int: lambda value: attr_value_pb2.AttrValue(i=value),
    float: lambda value: attr_value_pb2.AttrValue(f=value),
    str: lambda value: attr_value_pb2.AttrValue(s=value.encode()),
    tf.DType: lambda value: attr_value_pb2.AttrValue(type=value.as_datatype_enum),
    tf.TensorShape: lambda value: attr_value_pb2.AttrValue(shape=value.as_proto()),
    tensor_pb2.TensorProto: lambda value: attr_value_pb2.AttrValue(tensor=value),
    attr_value_pb2.AttrValue: lambda value: value,
}
"""An attribute of a value, by the value's type. A bool is an int, too, and stands before it."""


def attribute(value: Any) -> Any:
    """Return a Python value as an AttrValue.

    The value is a bool, an int, a float, a str, a DType, a list of DTypes, a TensorShape, an array, or a TensorProto.

    >>> attribute(3).i, attribute("NCCL").s, tf.as_dtype(attribute(tf.float32).type)
    (3, b'NCCL', tf.float32)
    """
    for kind, made in _ATTRIBUTES.items():
        if isinstance(value, kind):
            return made(value)
    if isinstance(value, list) and all(isinstance(each, tf.DType) for each in value):
        types = [each.as_datatype_enum for each in value]
        return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=types))
    return attr_value_pb2.AttrValue(tensor=tf.make_tensor_proto(value))


def _attributes(attrs: Mapping[str, Any], order: int | None = None) -> dict[str, Any]:
    found = attrs if order is None else {**attrs, ORDER: order}
    return {key: attribute(value) for key, value in found.items()}


class Editor:
    """A graph under construction: add, copy and change nodes, and then call `graph_def`, which checks the graph.

    >>> graph = Editor()
    >>> x = graph.add("Placeholder", "x", dtype=tf.float32)
    >>> y = graph.add("Neg", "y", [x], device="/cpu:1", T=tf.float32)
    >>> graph.control(y, graph.add("NoOp", "before"))
    >>> [(node.name, list(node.input)) for node in graph.graph_def().node]
    [('x', []), ('y', ['x', '^before']), ('before', [])]
    """

    def __init__(self, library: Any = None, versions: Any = None) -> None:
        self._nodes: dict[str, node_def_pb2.NodeDef] = {}
        self._library, self._versions = library, versions
        self.functions: dict[str, function_pb2.FunctionDef] = {
            function.signature.name: function for function in getattr(library, "function", ())
        }
        """The functions that the graph's nodes may call: those of the library, and then those that were added."""

    @staticmethod
    def of(graph: graph_pb2.GraphDef) -> Editor:
        """Return an editor with a copy of a graph. The copied nodes have the marks of the update and of branches."""
        editor = Editor(graph.library, graph.versions)
        for node in graph.node:
            editor.copy_captured(node, node.name, node.input)
        return editor

    def empty(self) -> Editor:
        """Return an editor with the same functions and without nodes, to which a rewrite adds nodes in order."""
        editor = Editor(self._library, self._versions)
        editor.functions.update(self.functions)
        return editor

    def add_library(self, library: Any) -> None:
        """Let the graph's nodes call the functions of another library, too. Functions of one name are the same."""
        for function in library.function:
            self.functions.setdefault(function.signature.name, function)

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[node_def_pb2.NodeDef]:
        return iter(self._nodes.values())

    def __getitem__(self, name: str) -> node_def_pb2.NodeDef:
        return self._nodes[name]

    def merge(self, other: Iterable[node_def_pb2.NodeDef]) -> None:
        """Add finished nodes, without copying them."""
        for node in other:
            self._put(node)

    def _put(self, node: node_def_pb2.NodeDef) -> None:
        if node.name in self._nodes:
            raise KernelError(f"two nodes are called {node.name!r}: {self._nodes[node.name].op} and {node.op}.")
        self._nodes[node.name] = node

    def add(
        self, op: str, name: str, inputs: Sequence[str] = (), device: str = "", order: int | None = None, **attrs: Any
    ) -> str:
        """Add a node and return its name, which is also the name of its first output."""
        self._put(node_def_pb2.NodeDef(name=name, op=op, device=device, input=inputs, attr=_attributes(attrs, order)))
        return name

    def once(self, op: str, name: str, inputs: Sequence[str] = (), device: str = "", **attrs: Any) -> str:
        """Add a node and return its name. Do nothing if a node of this name exists already."""
        return name if name in self else self.add(op, name, inputs, device, **attrs)

    def copy(
        self, node: node_def_pb2.NodeDef, name: str, inputs: Sequence[str], device: str, order: int | None = None,
        **attrs: Any,
    ) -> node_def_pb2.NodeDef:
        """Add a copy of a node with another name, other inputs, a device and changed attributes.

        The copy has no marks of the update and of branches.
        """
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        copy.name = name
        copy.device = device
        copy.input[:] = inputs
        for key in {"_class", UPDATE, BRANCH}.intersection(copy.attr):
            del copy.attr[key]
        for key, value in _attributes(attrs, order).items():
            copy.attr[key].CopyFrom(value)
        self._put(copy)
        return copy

    def copy_captured(
        self, node: node_def_pb2.NodeDef, name: str, inputs: Sequence[str], **attrs: Any
    ) -> node_def_pb2.NodeDef:
        """Add a copy of a captured node with its marks: the copy belongs to the same update and the same branch."""
        marks = {key: node.attr[key] for key in (UPDATE, BRANCH) if key in node.attr}
        return self.copy(node, name, inputs, node.device, **marks, **attrs)

    def change(
        self, name: str, op: str = "", inputs: Iterable[str] | None = None, drop: Iterable[str] = (), **attrs: Any
    ) -> None:
        """Change a node: its op, its inputs and some of its attributes. `drop` names attributes to remove.

        >>> graph = Editor()
        >>> graph.add("NoOp", "before"), graph.add("Placeholder", "number", dtype=tf.int32)
        ('before', 'number')
        >>> graph.change("number", "Const", ["^before"], value=tf.make_tensor_proto(7))
        >>> graph["number"].op, list(graph["number"].input), sorted(graph["number"].attr)
        ('Const', ['^before'], ['dtype', 'value'])
        """
        node = self._nodes[name]
        node.op = op or node.op
        if inputs is not None:
            node.input[:] = list(inputs)
        for key in drop:
            del node.attr[key]
        for key, value in _attributes(attrs).items():
            node.attr[key].CopyFrom(value)

    def read_instead(self, name: str, moved: Mapping[str, str], nodes: Mapping[str, str] | None = None) -> None:
        """Let a node read, and await, other tensors in place of these, and await other nodes in place of those.

        >>> graph = Editor()
        >>> graph.add("NoOp", "z", ["x", "y:1", "^x"])
        'z'
        >>> graph.read_instead("z", {"x": "call:2"})
        >>> list(graph["z"].input)
        ['call:2', 'y:1', '^call']
        """
        inputs = self._nodes[name].input
        tensors = [moved.get(canonical(source), source) for source in inputs if not is_control(source)]
        awaited = [node_of(source) for source in inputs if is_control(source)]
        controls = dict.fromkeys(f"^{(nodes or {}).get(each) or node_of(moved.get(each, each))}" for each in awaited)
        self.change(name, inputs=[*tensors, *controls])

    def rename_functions(self, references: Iterable[Any], renamed: Callable[[str], str]) -> None:
        """Rename the functions that a node runs. `references` are the parts of its attributes that name functions."""
        for reference in references:
            reference.name = renamed(reference.name)

    def copy_function(
        self, function: function_pb2.FunctionDef, name: str, change: Callable[[Editor, node_def_pb2.NodeDef], None]
    ) -> str:
        """Add a copy of a function with another name, unless a function of this name exists, and return the name.

        `change` is called for each node of the copy, with an editor of the copy's nodes.
        """
        if name not in self.functions:
            copy = self.functions[name] = function_pb2.FunctionDef()
            copy.CopyFrom(function)
            copy.signature.name = name
            body, nodes = _Body(), list(copy.node_def)
            body.merge(nodes)
            for node in nodes:
                change(body, node)
            copy.node_def.extend(list(body)[len(nodes):])
        return name

    def call(
        self, name: str, function: function_pb2.FunctionDef, inputs: Sequence[str], device: str, **attrs: Any
    ) -> None:
        """Add a node that calls a function. Functions of one name are the same."""
        signature = function.signature
        self.functions.setdefault(signature.name, function)
        given, returned = (
            [tf.as_dtype(argument.type) for argument in arguments]
            for arguments in (signature.input_arg, signature.output_arg)
        )
        called = attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=signature.name))
        op = "StatefulPartitionedCall" if signature.is_stateful else "PartitionedCall"
        self.add(
            op, name, inputs, device, Tin=given, Tout=returned, f=called, config="", config_proto="", executor_type="",
            **attrs,
        )

    def remove(self, names: Iterable[str]) -> None:
        """Remove nodes. The nodes that read them must be changed."""
        for name in names:
            del self._nodes[name]

    def trace(
        self, prefix: str, function: Callable[..., Any], inputs: Mapping[str, tf.TypeSpec], device: str = ""
    ) -> list[str]:
        """Add the nodes that a TensorFlow function builds, and return the names of its results.

        `inputs` maps tensors of this graph to their specs, in the order of the function's parameters. The names of the
        new nodes begin with `prefix`.

        >>> graph = Editor()
        >>> x = graph.add("Placeholder", "x", dtype=tf.float32)
        >>> graph.trace("double", lambda x: tf.multiply(x, 2.0), {x: tf.TensorSpec((), tf.float32)})
        ['double/Mul']
        """
        scratch = tf.Graph()
        with scratch.as_default():
            stand_ins = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in inputs.values()]
            outputs = function(*stand_ins)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        real = {stand_in.op.name: name for stand_in, name in zip(stand_ins, inputs, strict=True)}

        def rename(name: str) -> str:
            node, output = split(name)
            if node in real:
                return f"^{node_of(real[node])}" if output < 0 else real[node]
            return tensor(f"{prefix}/{node}", output)

        for node in scratch.as_graph_def().node:
            if node.name not in real:
                self.copy(node, f"{prefix}/{node.name}", [rename(name) for name in node.input], device)
        return [rename(output.name.removesuffix(":0")) for output in outputs]

    def constant(self, name: str, value: Any, dtype: tf.DType, device: str = "") -> str:
        """Add a constant and return its name. Do nothing if a node of this name exists already."""
        if name not in self._nodes:
            self.add("Const", name, device=device, dtype=dtype, value=tf.make_tensor_proto(value, dtype))
        return name

    def control(self, node: str, *before: str) -> None:
        """Add control inputs: the node runs after the nodes in `before`."""
        inputs = self._nodes[node].input
        present = set(inputs)
        inputs.extend(f"^{name}" for name in dict.fromkeys(before) if name != node and f"^{name}" not in present)

    def mark_update(self, node: str, occurrence: int) -> None:
        """Mark a node as one of an update, by the number of the update within the step."""
        self._nodes[node].attr[UPDATE].i = occurrence

    def mark_branch(self, node: str, pivots: Iterable[str]) -> None:
        """Mark a node with the pivots of the branches in which it runs."""
        self._nodes[node].attr[BRANCH].list.s[:] = [pivot.encode() for pivot in pivots]

    def histogram(self) -> dict[str, int]:
        """Return the number of nodes of each op."""
        return dict(Counter(node.op for node in self))

    def sources(self) -> Mapping[str, frozenset[str]]:
        """Return the nodes that each node reads or awaits; raise a KernelError if no node produces some input.

        >>> graph = Editor()
        >>> first = graph.add("NoOp", "first")
        >>> second = graph.add("NoOp", "second", ["^first"])
        >>> graph.sources()["second"]
        frozenset({'first'})
        """
        return sources_of(self._nodes)

    def graph_def(self, captured: bool = False) -> graph_pb2.GraphDef:
        """Return the graph; raise a KernelError if no node produces some input, or if the graph has a cycle.

        With `captured`, the nodes keep their marks, as in a captured step.
        """
        require_order(self.sources())
        graph = graph_pb2.GraphDef()
        if self._library is not None:
            graph.library.CopyFrom(self._library)
        graph.library.function.extend([*self.functions.values()][len(graph.library.function):])
        if self._versions is not None:
            graph.versions.CopyFrom(self._versions)
        for node in self:
            copy = graph.node.add()
            copy.CopyFrom(node)
            for key in () if captured else MARKS:
                if key in copy.attr:
                    del copy.attr[key]
        return graph


class _Body(Editor):
    """The nodes of a function, which have other names where they are read."""

    def add(self, op: str, *arguments: Any, **attrs: Any) -> str:
        return f"{super().add(op, *arguments, **attrs)}:{OP_DEF.get()(op).output_arg[0].name}:0"


def mark_collectives(graph_def: Any, group: int, offset: int) -> dict[str, str]:
    """Give the collectives of a graph the number of their group, other numbers, and an input for a token each.

    Return the device of each token, by the name of the input.

    >>> from tensorflow.core.framework.graph_pb2 import GraphDef
    >>> mark_collectives(GraphDef(), 1, 0)
    {}
    """
    nodes = {node.name: node for node in graph_def.node}
    tokens = {}
    for node in (node for node in graph_def.node if node.op == "CollectiveReduceV2"):
        key = nodes[node.input[3]]
        number = (int(tf.make_ndarray(key.attr["value"].tensor)) + offset) & 0x7FFFFFFF
        for constant, value in ((nodes[node.input[2]], group), (key, number)):
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        token = f"token{node.device.replace(':', '_')}"
        node.input.insert(4, token)
        node.attr["Nordering_token"].i = 1
        tokens[token] = node.device
    return tokens
