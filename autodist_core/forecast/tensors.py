"""The operations of a distributed graph, with the bytes of their results.

In: a graph, and the shapes of what is fed. Out: an `Operation` for each node, for `liveness`. TensorFlow infers the
shapes. An axis that it does not know, as in the body of a loop, has as many entries as a replica has examples. A call
of a function takes what its body takes. A loop also keeps what each round puts into its lists, for the backward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tensorflow as tf

from autodist_core.forecast.liveness import ACTIVATIONS, ALIASES, FILLING, Operation, Run
from autodist_core.step.editor import Editor
from autodist_core.step.naming import node_of, split, tensor
from autodist_core.step.op_types import CALLS, CONDITIONALS, FIRST_ARGUMENT, FUNCTIONS, LOOPS, OF_SHAPES
from autodist_core.step.ports import outputs_of

_WITHOUT_BYTES = (tf.resource, tf.variant, tf.string)


class Operations:
    """Makes the operations of one graph. `rows` is the number of examples of a replica.

    >>> @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    ... def doubled(x):
    ...     return tf.matmul(x, tf.ones((3, 2)), name="y")
    >>> graph = doubled.get_concrete_function().graph.as_graph_def()
    >>> made = Operations(graph, 5, lambda device: "localhost", lambda name: "activations")
    >>> [each.sizes for each in made.of(graph.node, {"x": tf.TensorSpec((5, 3))}, ["y"]) if each.name == "y"]
    [(40,)]
    """

    def __init__(
        self, graph_def: Any, rows: int, memory_of: Callable[[str], str], kind_of: Callable[[str], str]
    ) -> None:
        self._rows, self._memory_of, self._kind_of = rows, memory_of, kind_of
        self._library, self._versions = graph_def.library, graph_def.versions
        self._functions = {each.signature.name: each for each in graph_def.library.function}
        self._bodies: dict[tuple[str, tuple[str, ...]], tuple[int, dict[int, int], int]] = {}

    def of(
        self, nodes: Sequence[Any], given: Mapping[str, Any], wanted: Sequence[str], body: bool = False
    ) -> list[Operation]:
        """The operations of these nodes; `given` has the type and shape of what nodes get, and `wanted` the results."""
        fed = Editor(self._library, self._versions)
        for node in nodes:
            if (spec := given.get(node.name)) is None:
                fed.merge([node])
            else:
                fed.add("Placeholder", node.name, (), node.device, dtype=spec.dtype, shape=tf.TensorShape(spec.shape))
        definition, devices = fed.graph_def(), {node.name: node.device for node in fed}
        for node in definition.node:
            # TensorFlow parses the device of each node that it imports.
            node.device = ""
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(definition, name="")
        operations = graph.get_operations()
        index = {each.name: number for number, each in enumerate(operations)}
        kept = {node_of(name) for name in wanted}
        found = []
        for each in operations:
            # TensorFlow knows sizes before the step, where it knows the shapes.
            read = () if each.type in OF_SHAPES else each.inputs
            sizes, inner = self._sizes(each)
            found.append(Operation(
                each.name, each.type, "" if body else self._memory_of(devices[each.name]),
                tuple((index[source.op.name], source.value_index) for source in read),
                tuple(index[before.name] for before in each.control_inputs), sizes, inner,
                ACTIVATIONS if body else self._kind_of(each.name),
                each.name in kept or each.type in ("Const", "Placeholder"),
            ))
        return found

    def _sizes(self, operation: Any) -> tuple[tuple[int, ...], int]:
        """The bytes of the results of an operation, and those that it takes besides while it runs."""
        is_unknown = any(each.shape.rank is None for each in operation.outputs)
        unknown = max(map(self._bytes, operation.inputs), default=0) if is_unknown else 0
        sizes = [self._bytes(each, unknown) for each in operation.outputs]
        if operation.type in LOOPS:
            most, put, largest = self._body(operation.get_attr("body").name, operation.inputs)
            put = {output: size or self._reserved(operation.inputs[output]) for output, size in put.items()}
            rounds = _rounds(operation)
            sizes = [size + rounds * put.get(output, 0) for output, size in enumerate(sizes)]
            # Rounds begin before those before them have ended.
            ahead = min(operation.get_attr("parallel_iterations"), rounds) - 1
            most += (rounds - 1) * sum(put.values()) + ahead * largest
            return tuple(sizes), max(0, most - sum(sizes))
        if operation.type in (*CALLS, *CONDITIONALS):
            name, first = operation.get_attr(FUNCTIONS[operation.type][0]).name, FIRST_ARGUMENT[operation.type]
            most, _, _ = self._body(name, operation.inputs[first:])
            return tuple(sizes), max(0, most - sum(sizes))
        return tuple(sizes), 0

    def _bytes(self, value: Any, unknown: int = 0) -> int:
        if value.dtype in _WITHOUT_BYTES or value.op.type == "ReadVariableOp":
            return 0
        if value.shape.rank is None:
            return unknown
        return prod(self._rows if size is None else size for size in value.shape) * int(value.dtype.size)

    def _reserved(self, value: Any) -> int:
        """The bytes of a tensor of a list that was made as long as another one, as that of gradients is."""
        operation = value.op
        if operation.type == "TensorListFromTensor":
            return self._bytes(operation.inputs[0]) // _length(value)
        if operation.type == "TensorListReserve" and operation.inputs[0].op.type == "TensorListElementShape":
            return self._reserved(operation.inputs[0].op.inputs[0])
        return self._reserved(operation.inputs[value.value_index]) if operation.type in LOOPS else 0

    def _body(self, name: str, arguments: Sequence[Any]) -> tuple[int, dict[int, int], int]:
        """The most bytes that a function takes, those of a tensor that it puts into each list, and its largest."""
        key = name, tuple(str(each.shape) for each in arguments)
        if key not in self._bodies:
            self._bodies[key] = self._ran(self._functions[name], arguments)
        return self._bodies[key]

    def _ran(self, function: Any, arguments: Sequence[Any]) -> tuple[int, dict[int, int], int]:
        names = {
            f"{node.name}:{port.argument}:{port.position}": tensor(node.name, number)
            for node in function.node_def for number, port in enumerate(outputs_of(node, self._functions))
        }
        body, given = Editor(), {}
        for argument, value in zip(function.signature.input_arg, arguments, strict=True):
            if value.dtype == tf.resource and (handle := _handle(value)):
                body.add("VarHandleOp", argument.name, dtype=handle["dtype"], shape=handle["shape"])
            else:
                body.add("Placeholder", argument.name)
                given[argument.name] = value
        for node in function.node_def:
            body.copy(node, node.name, [names.get(source, source) for source in node.input], node.device)
        wanted = [function.ret[each.name] for each in function.signature.output_arg]
        results = [names.get(name, name) for name in wanted]
        made = self.of(list(body), given, results, body=True)
        # The arguments are in the memory of the caller.
        made = [replace(each, sizes=(0,)) if each.name in given else each for each in made]
        run, index = Run(made), {each.name: number for number, each in enumerate(made)}
        returned = [(index[node_of(name)], max(0, split(name)[1])) for name in results]
        # What a round gets is what the round before it has returned.
        before = {
            run.buffer((index[argument.name], 0)): run.buffer(result)
            for argument, result in zip(function.signature.input_arg, returned, strict=False) if argument.name in given
        }
        put: dict[int, int] = {}
        seen: set[int] = set()
        for output, (number, _) in enumerate(returned):
            while made[number].op in ALIASES - FILLING and made[number].inputs:
                number = made[number].inputs[0][0]
            if made[number].op in FILLING:
                buffer = run.buffer(made[number].inputs[-1])
                buffer = before.get(buffer, buffer)
                put[output] = 0 if buffer in seen else run.size(buffer)
                seen.add(buffer)
        largest = max((size for each in made for size in each.sizes), default=0)
        return run.most[""].total() if run.most else 0, put, largest


def _handle(value: Any) -> Any:
    """The attributes of the variable that a tensor is the handle of; None if that is not known."""
    operation = value.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation.node_def.attr if operation.type == "VarHandleOp" else None


def _rounds(loop: Any) -> int:
    """How often a loop runs: as many times as the longest of its lists has tensors, as far as that is known."""
    return max((_length(each) for each in loop.inputs if each.dtype == tf.variant), default=1)


def _length(value: Any) -> int:
    """How many tensors a list will have, as far as it is known; else 1."""
    operation = value.op
    if operation.type == "TensorListFromTensor":
        shape = operation.inputs[0].shape
        return int(shape[0] or 1) if shape.rank else 1
    if operation.type in ("TensorListReserve", "EmptyTensorList"):
        count = operation.inputs[1]
        known = _length(count.op.inputs[0]) if count.op.type == "TensorListLength" else tf.get_static_value(count)
        return int(known or 1)
    return _rounds(operation) if operation.type in LOOPS else 1
