"""Put nodes of a graph into functions that XLA compiles, and one node that calls each function in their place.

In: an editor, and pieces: the nodes of each function. Out: the changed graph, and the new names of tensors. For one
piece of two nodes::

    x -> y -> z    becomes    x -> call,  whose function has y -> z

No node outside a piece may stand between two nodes of it (`autodist_core.kernel.analysis.pieces` makes such pieces). A
piece may read and write variables, whose handles are outside. XLA writes them when the whole function has run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2

from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.ports import Port, has_effect, outputs_of


def enclose(
    graph: Editor, pieces: Mapping[str, Sequence[str]], wanted: Iterable[str] = (), repeated: Collection[str] = (),
    prefix: str = "",
) -> dict[str, str]:
    """Put nodes into functions that XLA compiles. In their place, one node calls each function.

    `pieces` maps the name of each such node to the nodes of its function. A function gets copies of the constants, and
    of the nodes in `repeated`, that its nodes read. `wanted` names tensors that are results of the graph. `prefix` is
    left out of the names in the function, so that equal functions of several replicas are one function. The result maps
    the tensors of the pieces to the tensors that have their values now.

    >>> graph = Editor()
    >>> names = graph.add("Placeholder", "x", dtype=tf.float32), graph.add("Neg", "y", ["x"], T=tf.float32)
    >>> names += (graph.add("Neg", "z", ["y"], T=tf.float32),)
    >>> enclose(graph, {"call": ["y", "z"]}, ["z"])
    {'z': 'call'}
    >>> [(node.name, node.op, list(node.input)) for node in graph]
    [('x', 'Placeholder', []), ('call', 'PartitionedCall', ['x'])]
    """
    home = {name: call for call, names in pieces.items() for name in names}
    contents = {call: _with_repeated(graph, names, repeated) for call, names in pieces.items()}
    read = [source for node in graph if node.name not in home for source in naming.data_inputs(node)] + list(wanted)
    for inside in contents.values():
        sources = (source for name in inside for source in naming.data_inputs(graph[name]))
        read += [source for source in sources if naming.node_of(source) not in inside]
    used: dict[str, dict[str, None]] = {call: {} for call in pieces}
    for source in read:
        if naming.node_of(source) in home:
            used[home[naming.node_of(source)]].setdefault(naming.canonical(source))
    for call, names in pieces.items():
        _call(graph, call, names, contents[call], list(used[call]), prefix)
    graph.remove(home)
    moved = {source: naming.tensor(call, number) for call, found in used.items() for number, source in enumerate(found)}
    for node in graph:
        if any(naming.node_of(source) in home for source in node.input):
            tensors = [moved.get(naming.canonical(source), source) for source in naming.data_inputs(node)]
            controls = [naming.node_of(source) for source in node.input if naming.is_control(source)]
            graph.change(node.name, inputs=[*tensors, *dict.fromkeys(f"^{home.get(name, name)}" for name in controls)])
    return moved


def _with_repeated(graph: Editor, names: Sequence[str], repeated: Collection[str]) -> dict[str, None]:
    """Return the nodes of a piece, and behind them the constants and the nodes in `repeated` that they read."""
    inside, queue = dict.fromkeys(names), list(names)
    for name in queue:
        for source in map(naming.node_of, naming.data_inputs(graph[name])):
            if source not in inside and (source in repeated or graph[source].op == "Const"):
                inside[source] = None
                queue.append(source)
    return inside


def _call(
    graph: Editor, call: str, names: Sequence[str], inside: Collection[str], results: Sequence[str], prefix: str
) -> None:
    """Add a node that calls a function made of the nodes in `inside`; `results` are the tensors that it returns."""
    functions, body = graph.functions, Editor()
    arguments: dict[str, str] = {}
    types: list[tf.DType] = []

    def port(source: str) -> Port:
        node, output = naming.split(source)
        return outputs_of(graph[node], functions)[output]

    def local(source: str) -> str:
        name, found = naming.node_of(source), port(source)
        if name in inside:
            return f"{name.removeprefix(prefix)}:{found.argument}:{found.position}"
        if naming.canonical(source) not in arguments:
            arguments[naming.canonical(source)] = f"in{len(arguments)}"
            types.append(found.dtype)
        return arguments[naming.canonical(source)]

    for name in inside:
        inputs = [local(source) for source in naming.data_inputs(graph[name])]
        awaited = [naming.node_of(source) for source in graph[name].input if naming.is_control(source)]
        inputs += [f"^{each.removeprefix(prefix)}" for each in awaited if each in inside]
        copy = body.copy(graph[name], name.removeprefix(prefix), inputs, "")
        body.change(copy.name, drop=[key for key in naming.MARKS if key in copy.attr])
    returned = {f"out{number}": source for number, source in enumerate(results)}
    function = function_of(
        "compiled", body, types, {name: local(source) for name, source in returned.items()},
        [port(source).dtype for source in results], functions, _XlaMustCompile=attr_value_pb2.AttrValue(b=True),
    )
    graph.add_function(function)
    controls = [source for name in names for source in graph[name].input if naming.is_control(source)]
    before = dict.fromkeys(source for source in controls if naming.node_of(source) not in inside)
    called = attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=function.signature.name))
    op = "StatefulPartitionedCall" if function.signature.is_stateful else "PartitionedCall"
    graph.add(
        op, call, [*arguments, *before], graph[names[0]].device, Tin=types,
        Tout=[port(source).dtype for source in results], f=called, config="", config_proto="", executor_type="",
        _XlaMustCompile=True,
    )


def function_of(
    word: str, body: Editor, arguments: Sequence[tf.DType], results: Mapping[str, str], types: Sequence[tf.DType],
    functions: Mapping[str, function_pb2.FunctionDef], stateful: bool = False, **attrs: attr_value_pb2.AttrValue,
) -> function_pb2.FunctionDef:
    """Return a function of the nodes of `body`, which read the arguments `in0`, `in1` and so on. Its name begins so.

    `results` has the tensor in the function of each result, and `types` their types. `functions` are those that the
    nodes call. Equal functions have equal names.

    >>> body = Editor()
    >>> _ = body.add("Neg", "minus", ["in0"], T=tf.float32)
    >>> function = function_of("own", body, [tf.float32], {"out0": "minus:y:0"}, [tf.float32], {})
    >>> function.signature.name[:4], function.signature.output_arg[0].name, function.signature.is_stateful
    ('own_', 'out0', False)
    """
    function = function_pb2.FunctionDef(node_def=list(body), ret=results, attr=attrs)
    for number, dtype in enumerate(arguments):
        function.signature.input_arg.add(name=f"in{number}", type=dtype.as_datatype_enum)
    for name, dtype in zip(results, types, strict=True):
        function.signature.output_arg.add(name=name, type=dtype.as_datatype_enum)
    effects = [node.name for node in body if has_effect(node, functions)]
    function.signature.is_stateful = stateful or bool(effects)
    function.signature.control_output.extend(effects)
    function.control_ret.update({name: name for name in effects})
    content = function.SerializeToString(deterministic=True)
    function.signature.name = f"{word}_{hashlib.sha256(content).hexdigest()[:16]}"
    return function
