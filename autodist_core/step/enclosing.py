"""Put nodes of a graph into functions that XLA compiles, and one node that calls each function in their place.

In: an editor, and pieces: the nodes of each function. Out: the changed graph, and the new names of tensors. For one
piece of two nodes::

    x -> y -> z    becomes    x -> call,  whose function has y -> z

No node outside a piece may stand between two nodes of it: `autodist_core.kernel.analysis.compilable` makes such pieces.
A piece may read and write variables, whose handles are outside. XLA writes them when the whole function has run.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache

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
            graph.read_instead(node.name, moved, home)
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
    body = Body(graph, inside, lambda name: name.removeprefix(prefix))
    for name in inside:
        awaited = (naming.node_of(source) for source in graph[name].input if naming.is_control(source))
        body.copy(name, [f"^{body.own(each)}" for each in awaited if each in inside], "")
    function = body.function("compiled", results, _XlaMustCompile=attr_value_pb2.AttrValue(b=True))
    controls = [source for name in names for source in graph[name].input if naming.is_control(source)]
    before = dict.fromkeys(source for source in controls if naming.node_of(source) not in inside)
    graph.call(call, function, [*body.arguments, *before], graph[names[0]].device, _XlaMustCompile=True)


class Body:
    """A function of nodes of a graph, under construction. `own` gives the name of a node in the function.

    >>> graph = Editor()
    >>> x = graph.add("Placeholder", "x", dtype=tf.float32)
    >>> y = graph.add("Neg", "y", [x], T=tf.float32)
    >>> body = Body(graph, {"y"}, lambda name: f"own/{name}")
    >>> body.copy("y", [], "")
    >>> body.local("x"), body.local("y"), list(body.arguments)
    ('in0', 'own/y:y:0', ['x'])
    """

    def __init__(self, graph: Editor, inside: Collection[str], own: Callable[[str], str]) -> None:
        self._graph, self._inside, self.own = graph, inside, own
        self._functions = graph.functions
        self._outputs = cache(lambda node: outputs_of(graph[node], self._functions))
        self.nodes = Editor()
        """The nodes of the function."""
        self._types: dict[str, tf.DType] = {}
        self._names: dict[str, str] = {}

    @property
    def arguments(self) -> Sequence[str]:
        """What a call gives for the arguments of the function."""
        return list(self._types)

    def argument(self, given: str, dtype: tf.DType) -> str:
        """Return the argument for which a call gives this."""
        self._types.setdefault(given, dtype)
        return self._names.setdefault(given, f"in{len(self._names)}")

    def _port(self, source: str) -> Port:
        node, output = naming.split(source)
        return self._outputs(node)[output]

    def local(self, source: str) -> str:
        """Return the name that a tensor of the graph has in the function: of one of its nodes, or of an argument."""
        node, found = naming.node_of(source), self._port(source)
        if node in self._inside:
            return f"{self.own(node)}:{found.argument}:{found.position}"
        return self.argument(naming.canonical(source), found.dtype)

    def copy(self, name: str, controls: Iterable[str], device: str) -> None:
        """Add a node of the graph, with these control inputs."""
        node = self._graph[name]
        inputs = [*map(self.local, naming.data_inputs(node)), *controls]
        copy = self.nodes.copy(node, self.own(name), inputs, device)
        self.nodes.change(copy.name, drop=[key for key in naming.MARKS if key in copy.attr])

    def function(
        self, word: str, results: Iterable[str], signals: Iterable[str] = (), stateful: bool = False,
        **attrs: attr_value_pb2.AttrValue,
    ) -> function_pb2.FunctionDef:
        """Return the function. It returns tensors of the graph, and behind them integers of the function's own nodes.

        Its name begins with the word, and says what it does: equal functions have one name.
        """
        results = list(results)
        returned = [*map(self.local, results), *(f"{name}:output:0" for name in signals)]
        types = [self._port(source).dtype for source in results] + [tf.int32] * (len(returned) - len(results))
        function = function_pb2.FunctionDef(
            node_def=list(self.nodes), ret={f"out{number}": name for number, name in enumerate(returned)}, attr=attrs
        )
        for given, dtype in self._types.items():
            function.signature.input_arg.add(name=self._names[given], type=dtype.as_datatype_enum)
        for number, dtype in enumerate(types):
            function.signature.output_arg.add(name=f"out{number}", type=dtype.as_datatype_enum)
        effects = [node.name for node in self.nodes if has_effect(node, self._functions)]
        function.signature.is_stateful = stateful or bool(effects)
        function.signature.control_output.extend(effects)
        function.control_ret.update({name: name for name in effects})
        content = function.SerializeToString(deterministic=True)
        function.signature.name = f"{word}_{hashlib.sha256(content).hexdigest()[:16]}"
        return function
