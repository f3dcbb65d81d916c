"""Trace a marked function into a flat graph, find its updates, and capture it.

In: a Python function, and the arguments of a call. Out: a `CapturedFunction`, with the `GraphItem` that strategies and
kernels take. For a function that trains a kernel::

    traced      a graph with a marker behind the gradient of the kernel        recording.py
    updates     {"AssignSubVariableOp": 0, "mul": 0}                           updates.py
    weighing    the loss is a mean: gradients count by the replica's share     weighing.py
    captured    GraphItem(variables=(kernel,), gradients=(...), ...)           autodist_core.capture
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import tensorflow as tf

from autodist_core.capture import Source, Traced, capture, combined_as_written, gathering, own_rows
from autodist_core.capture.batch_axis import follow, joined, to_be_joined
from autodist_core.capture.traced import name_of
from autodist_core.errors import CaptureError
from autodist_core.loops.arguments import Parsed
from autodist_core.loops.joining import given_to_all, joins
from autodist_core.loops.mixing_notes import said_of
from autodist_core.loops.own_writes import require_combined, require_declared
from autodist_core.loops.recomputed import find_recomputed
from autodist_core.loops.recording import Recording, recorded
from autodist_core.loops.side_state import additions, counted
from autodist_core.loops.terms import terms_of, without
from autodist_core.loops.updates import Updates, find_updates
from autodist_core.loops.variables import Variables
from autodist_core.loops.weighing import means_of_examples, of_gradients_by, seeded, sums_of_two_kinds, weighed
from autodist_core.step.graph_item import GraphItem, Joined
from autodist_core.training import Entry, watched_variable


@dataclass(frozen=True)
class CapturedFunction:
    """A captured function, with the parts of it that know its Python structure."""

    item: GraphItem
    rebuild: Callable[[Sequence[Any]], Any]
    """Packs output tensors into the structure that the function returns."""
    entries: tuple[Entry, ...]
    """The variables that the function touches."""
    results: tuple[tf.TensorSpec, ...]
    """The types and shapes of the output tensors, on one replica."""
    notes: tuple[str, ...]
    """The plan's notes on what gives other numbers than one device."""


@dataclass(frozen=True)
class _Decided:
    """A traced step, how its results become one, and the plan's notes on it."""

    traced: Traced
    joined: tuple[Joined, ...]
    notes: tuple[str, ...]


def as_graph_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with Python's `if` and `while` on tensors turned into graph operations, as in a `tf.function`.

    >>> as_graph_function(lambda x: x + 1)(1)
    2
    """
    python = getattr(function, "python_function", function)  # a tf.function has the function that it was made of

    def called(*args: Any, **kwargs: Any) -> Any:
        return python(*args, **kwargs)

    # The conversion of a call converts what is called, which may be a method, an object or a partial function as well.
    return tf.autograph.to_graph(called)


def trace_function(
    function: Callable[..., Any], parsed: Parsed, specs: Sequence[tf.TensorSpec], variables: Variables,
    context: Callable[[Inside], AbstractContextManager[Any]], of_each_replica: bool = False,
) -> CapturedFunction:
    """Trace the function for arguments of these specs, within a context, and capture it.

    With `of_each_replica`, it has tf.distribute's meaning: it is one replica's, gradients and what is added to
    variables are added up, and every replica's results are returned.
    """
    concrete, inside = _trace(function, parsed, specs, context)
    graph, recording = concrete.graph, inside.recording
    inputs = concrete.inputs[: len(specs)]
    entries = _entries(graph, recording, variables)
    names = {id(entry.handle): entry.spec.name for entry in entries}
    whole = [tensor for tensor, is_whole in zip(inputs, parsed.whole, strict=True) if is_whole]
    flat = tf.nest.flatten(inside.result)
    tensors = [index for index, value in enumerate(flat) if tf.is_tensor(value)]
    updates = find_updates(
        graph, recording.found,
        [inside.examples, inside.replica, *(tensor for tensor in inputs if all(tensor is not each for each in whole))],
        lambda handle: names.get(id(_outside(graph, handle)), ""),
        (entry.spec.name for entry in entries if entry.spec.kind == "seed"),
        (flat[index] for index in tensors),
    )
    traced = Traced(
        graph=graph, sources=[Source(entry.spec, entry.handle) for entry in entries], inputs=inputs,
        outputs=[flat[index] for index in tensors], examples=inside.examples, total=inside.total,
        replica=inside.replica if of_each_replica or inside.gathers else None,
        # A gradient that reaches an update is the sum already.
        sums=[marker for marker in inside.sums if marker.op.name not in updates.operations],
        gathers=[marker for marker in inside.gathers if marker.op.name not in updates.operations],
        gradients=updates.gradients, updates=updates.operations, whole=whole,
    )
    decided = (_of_each_replica if of_each_replica else _decided)(traced, updates, recording)
    item = capture(decided.traced, decided.joined)
    touched = {variable.name for variable in item.variables if variable.handle}
    return CapturedFunction(
        item, _rebuild(inside.result, flat, tensors),
        tuple(entry for entry in entries if entry.spec.name in touched),
        tuple(tf.TensorSpec.from_tensor(output) for output in traced.outputs), decided.notes,
    )


@dataclass
class Inside:
    """What is known inside a trace, and what the trace leaves behind."""

    recording: Recording
    examples: Any
    total: Any
    replica: Any
    """The number of the replica."""
    result: Any = None
    sums: list[Any] = field(default_factory=list)
    """Markers of values that are added up over the replicas."""
    gathers: list[Any] = field(default_factory=list)
    """Markers of values that become the rows of all replicas."""

    def add_up(self, value: Any) -> Any:
        """The sum of a value over the replicas. Its gradient is the sum of the replicas' gradients."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def added(value: Any) -> Any:
            return self._marked(value), self._marked

        return added(value)

    def gather(self, value: Any) -> Any:
        """The rows of all replicas. The gradient of a row is the sum of the replicas' gradients."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def gathered(value: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                return own_rows(self._marked(tf.convert_to_tensor(upstream)), value, self.replica, self._rows)

            return self._rows(value), gradient

        return gathered(value)

    def _marked(self, value: Any) -> Any:
        self._require_here("all_reduce")
        marker = tf.identity(value, name="sum_over_replicas")
        self.sums.append(marker)
        return marker

    def _rows(self, value: Any) -> Any:
        self._require_here("all_gather or whole_batch")
        marker = tf.identity(value, name="rows_of_replicas")
        self.gathers.append(marker)
        return marker

    def _require_here(self, called: str) -> None:
        if not self.recording.is_here():
            self.recording.refusal = CaptureError(
                f"{called} is called inside a loop, a conditional or a nested tf.function of the function that run() "
                "gets, or that is marked. Call it at the top level: take the @tf.function of the nested function away."
            )
            raise self.recording.refusal


def _trace(
    function: Callable[..., Any], parsed: Parsed, specs: Sequence[tf.TensorSpec],
    context: Callable[[Inside], AbstractContextManager[Any]],
) -> tuple[Any, Inside]:
    """One concrete function. TensorFlow traces a function twice if it makes variables; the last pass counts."""
    passes: list[Inside] = []

    def traced(*tensors: Any) -> list[Any]:
        *given, examples, total, replica = tensors
        with recorded() as recording:
            inside = Inside(recording, examples, total, replica)
            passes.append(inside)
            args, kwargs = parsed.with_tensors(given)
            with context(inside), gathering(inside.gather):
                inside.result = tf.nest.map_structure(_as_tensor, function(*args, **kwargs))
        return [leaf for leaf in tf.nest.flatten(inside.result) if tf.is_tensor(leaf)]

    named = [tf.TensorSpec(spec.shape, spec.dtype, name=f"input_{index}") for index, spec in enumerate(specs)]
    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    counts.append(tf.TensorSpec((), tf.int32, "replica"))
    try:
        concrete = tf.function(traced, autograph=False).get_concrete_function(*named, *counts)
    except Exception:
        for inside in passes[-1:]:
            if inside.recording.refusal is not None:
                raise inside.recording.refusal from None
        raise
    return concrete, passes[-1]


def _as_tensor(value: Any) -> Any:
    """A result as a tensor if it has a value; None for an operation, such as the one an optimizer returns."""
    if value is None or isinstance(value, tf.Operation):
        return None
    if isinstance(value, Iterator):
        raise CaptureError(
            f"a marked function returns a {type(value).__name__}, of which the values come up after the trace only. "
            "Return a list or a tuple of tensors."
        )
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices):
        raise CaptureError(
            f"a marked function returns a {type(value).__name__}. Return dense tensors: replicas' results are put "
            "together along an axis of examples."
        )
    try:
        # An identity: a result that is an argument itself is computed, too.
        return tf.identity(tf.convert_to_tensor(value))
    except (TypeError, ValueError):
        return value


def _entries(graph: Any, recording: Recording, variables: Variables) -> list[Entry]:
    paths = {
        id(_outside(graph, each.variable.handle)): getattr(each.variable, "path", "")
        for call in recording.found for each in call.gradients if hasattr(each.variable, "handle")
    }
    # A variable that is watched does not show that its handle is asked for.
    touched = [(id(value), recording.variable_of(value, watched_variable)) for value, _ in graph.captures]
    return [variables.entry(variable, paths.get(handle, "")) for handle, variable in touched if variable is not None]


def _outside(graph: Any, handle: Any) -> Any:
    """Return the outer handle of a captured placeholder, and any other handle as it is."""
    for value, placeholder in graph.captures:
        if placeholder is handle:
            return value
    return handle


def _decided(traced: Traced, updates: Updates, recording: Recording) -> _Decided:
    """All that follows from how a step's tensors depend on the examples."""
    seeds: list[Any] = []
    targets: list[Any] = []
    for each in updates.differentiations:
        seeds += each.seeds
        targets += each.targets[: len(each.seeds)]
    variables = {id(source.handle): source.variable for source in traced.sources}
    added = additions(traced.graph, variables, traced.updates)
    outputs = {id(output) for output in traced.outputs}
    inner = [tensor for tensor in to_be_joined(traced) if id(tensor) not in outputs]
    whole = {id(each) for each in traced.whole}
    batch = {each.op.name for each in (traced.examples, *traced.inputs) if id(each) not in whole}
    terms = [terms_of(output.op.inputs[0], without(batch)) for output in traced.outputs]
    of_terms = [tensor for of in terms for each in of for tensor in (each.tensor, *(by for by, _ in each.numbers))]
    of_examples = [tensor for target, seed, sources in recording.of_examples for tensor in (target, seed, *sources)]
    again = find_recomputed(traced)
    asked = [
        targets, traced.outputs, [each.added for each in added], inner, of_terms, of_examples, seeds, again.given,
    ]
    known = of_gradients_by(recording.by_examples)
    found = follow(traced, known, [tensor for tensors in asked for tensor in tensors], again.alone)
    states = iter(found.asked)
    of_targets, of_outputs, of_added, of_inner, of_terms, of_gradients, of_seeds, of_given = (
        list(islice(states, len(each))) for each in asked
    )
    by_name = {source.variable.name: source.variable for source in traced.sources}
    require_combined(updates.own_writes, by_name, added, of_added)
    of_targets = [seeded(*states) for states in zip(of_targets, of_seeds, strict=True)]
    by_examples = means_of_examples(recording.of_examples, of_gradients)
    # The gradient of a sum over the replicas is a sum over them: what it adds up must count by the share already.
    over_replicas = bool(traced.sums or traced.gathers)
    summed, by_seeds = weighed(zip(seeds, of_targets, strict=True), by_examples, always=over_replicas)
    by_share = {**counted(added, of_added), **by_seeds}
    made_for_all = updates.made_of_gradients | again.operations.keys()
    sums, of_parts = sums_of_two_kinds(traced.outputs, terms, of_terms, made_for_all)
    combined = {addition.write.name for addition in added if addition.operation.name in by_share}
    found = replace(found, uncombined_writes=tuple(
        each for each in found.uncombined_writes if each.operation.name not in combined
    ))
    hows = joins(traced.outputs, of_outputs, made_for_all, sums)
    results = enumerate(zip(traced.outputs, of_outputs, hows, strict=True))
    averaged = [(index, output, state) for index, (output, state, how) in results if how == "mean"]
    traced = replace(
        traced, added_up=summed, counted={**by_share, **of_parts},
        outputs=[sums.get(index, output) for index, output in enumerate(traced.outputs)],
    )
    return _Decided(
        combined_as_written(traced),
        (*joined(inner, of_inner), *given_to_all(again.given, of_given), *_joined(traced.outputs, hows)),
        said_of(found, of_targets, averaged),
    )


def _of_each_replica(traced: Traced, updates: Updates, recording: Recording) -> _Decided:
    """The step with tf.distribute's meaning: gradients are added up, and results are each replica's."""
    del recording
    require_declared(updates.own_writes, {source.variable.name: source.variable for source in traced.sources})
    seeds = [seed for each in updates.differentiations for seed in each.seeds]
    traced = combined_as_written(replace(traced, added_up=seeds))
    return _Decided(traced, _joined(traced.outputs, ["each"] * len(traced.outputs)), ())


def _joined(outputs: Sequence[Any], hows: Sequence[str]) -> tuple[Joined, ...]:
    return tuple(Joined(name_of(output), how) for output, how in zip(outputs, hows, strict=True))


def _rebuild(result: Any, flat: Sequence[Any], tensors: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    # The structure without its tensors: these would keep the graph alive.
    structure = tf.nest.map_structure(lambda _: 0, result)
    plain = [None if tf.is_tensor(value) else value for value in flat]

    def rebuild(values: Sequence[Any]) -> Any:
        leaves = list(plain)
        for index, value in zip(tensors, values, strict=True):
            leaves[index] = value
        return tf.nest.pack_sequence_as(structure, leaves)

    return rebuild
