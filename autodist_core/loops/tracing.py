"""Trace a marked function into a flat graph, find its updates, and capture it.

In: a Python function, and the arguments of a call. Out: a `CapturedFunction`, with the `GraphItem` that strategies and
kernels take. For a function that trains a kernel::

    traced      a graph with a marker behind the gradient of the kernel        recording.py
    updates     {"AssignSubVariableOp": 0, "mul": 0}                           updates.py
    decided     the loss is a mean: gradients count by the replica's share     deciding.py
    captured    GraphItem(variables=(kernel,), gradients=(...), ...)           autodist_core.capture
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from autodist_core.capture import Exchanged, Flags, Source, Traced, capture, concrete_function, gathering
from autodist_core.capture.gradients.recording import Recording, recorded
from autodist_core.capture.source_lines import source_lines
from autodist_core.capture.traced import Counted
from autodist_core.errors import CaptureError
from autodist_core.loops.calls.arguments import Arguments
from autodist_core.loops.combining.deciding import decided_for_each_replica, decided_for_whole_batch
from autodist_core.loops.gradients.accumulated import counted_sums
from autodist_core.loops.gradients.own_gradients import own_results, returned
from autodist_core.loops.gradients.summed_again import Origins
from autodist_core.loops.gradients.updates import UpdateSearch
from autodist_core.loops.inside import Inside
from autodist_core.loops.nested_markers import require_in_updates
from autodist_core.loops.variables import Variables
from autodist_core.reports.step_plan import explicit_draws
from autodist_core.runtime.composites import components_of, grouped, packed, signature_of
from autodist_core.training import Captured, Entry
from autodist_core.training.watching import watched_variable

_REMEDY = "An array that is no batch, and that every replica is to get whole, is named by function(whole=['name'])."


@dataclass(frozen=True)
class CapturedFunction(Captured):
    """A captured function, with the parts of it that know its Python structure.

    >>> from contextlib import nullcontext
    >>> from autodist_core.loops.calls.arguments import Reader
    >>> def step(x):
    ...     return {"total": tf.reduce_sum(x)}
    >>> parsed, specs = Reader(step).parse((tf.ones((4, 3)),), {}), [tf.TensorSpec((None, 3))]
    >>> captured = trace_function(step, parsed, specs, Variables(), lambda inside: nullcontext())
    >>> captured.results, captured.rebuild([12.0])
    ((TensorSpec(shape=(), dtype=tf.float32, name='Identity'),), {'total': 12.0})
    """

    results: tuple[tf.TensorSpec, ...]
    """The types and shapes of the output tensors, on one replica."""
    notes: tuple[str, ...]
    """The plan's notes on what gives other variables than one device's."""
    idle: tuple[int | None, ...] = ()
    """For each result of a function of `run()`: the output with its value on replicas without examples."""
    outer: tuple[Any, ...] = ()
    """Tensors of somebody's trace around it that the function of `run()` uses: inputs behind its arguments."""
    reported: tuple[str, ...] = ()
    """The plan's notes on results that are not one device's."""


def as_graph_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with Python's `if` and `while` on tensors turned into graph operations, as in a `tf.function`.

    >>> as_graph_function(lambda x: x + 1)(1)
    2
    """
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # The conversion of a call converts what is called, which may be a method, an object or a partial function as well.
    return tf.autograph.to_graph(called)


def trace_function(
    function: Callable[..., Any], parsed: Arguments, specs: Sequence[Any], variables: Variables,
    context: Callable[[Inside], AbstractContextManager[Any]], replicas: int = 0, draws_as_one: bool = False,
) -> CapturedFunction:
    """Trace the function for arguments of these specs, within a context, and capture it.

    With a number of `replicas`, it has tf.distribute's meaning: it is one replica's, gradients and what is added to
    variables are added up, and every replica's results are returned. `draws_as_one` says that replicas draw the random
    numbers of one device, as far as they can.

    >>> from contextlib import nullcontext
    >>> from autodist_core.loops.calls.arguments import Reader
    >>> from autodist_core.capture.gradients.example import example_loop
    >>> kernel = tf.Variable(tf.ones((3, 1)), name="kernel")
    >>> step, specs = example_loop(kernel), [tf.TensorSpec((None, 3))]
    >>> parsed = Reader(step).parse((tf.ones((4, 3)),), {})
    >>> captured = trace_function(step, parsed, specs, Variables(), lambda inside: nullcontext())
    >>> print(captured.item.gradients[0].variable, captured.item.joined[-1].how)
    kernel mean
    """
    concrete, inside = _trace(as_graph_function(function), parsed, specs, context, replicas, variables.holding)
    graph, recording = concrete.graph, inside.recording
    groups = list(zip(grouped(specs, concrete.inputs), parsed.whole, strict=False))
    # Tensors of somebody's trace around it are inputs, too, and every replica gets them whole.
    around = [placeholder for value, placeholder in graph.captures if tf.is_symbolic_tensor(value)]
    outer = [value for value, _ in graph.captures if tf.is_symbolic_tensor(value)]
    _require_passable(outer, bool(replicas))
    whole = [*chain.from_iterable(parts for parts, is_whole in groups if is_whole), *around]
    split = list(chain.from_iterable(parts for parts, is_whole in groups if not is_whole))
    entries, new = _entries(graph, recording, variables)
    flat = tf.nest.flatten(inside.result)
    tensors = [index for index, value in enumerate(flat) if tf.is_tensor(value)]
    results, own = [flat[index] for index in tensors], frozenset[str]()
    if replicas:
        results, own = own_results(
            graph, recording.found, results, [inside.sums, inside.values, inside.gathers], inside.completed
        )
    batch = [inside.examples, inside.replica, *split]
    names = {id(entry.handle): entry.spec.name for entry in entries}
    names |= {id(placeholder): names[id(value)] for value, placeholder in graph.captures if id(value) in names}
    updates = UpdateSearch(
        graph, recording.found, batch, lambda handle: names.get(id(handle), ""),
        (entry.spec.name for entry in entries if entry.spec.kind == "seed"), results,
    ).run()
    again: Mapping[str, Counted] = {}
    if replicas:
        again, entries = counted_sums(
            graph, inside.sums, inside.slices, recording.found, entries, new, batch, updates, variables, replicas
        )
    # A gradient that reaches an update is the sum already, and has all rows.
    sums, gathers = (
        [marker for marker in markers if marker.op.name not in updates.operations and marker.op.name not in again]
        for markers in (inside.sums, inside.gathers)
    )
    traced = Traced(
        graph=graph, sources=[Source(entry.spec, entry.handle) for entry in entries],
        inputs=[*chain.from_iterable(parts for parts, _ in groups), *around],
        outputs=results, examples=inside.examples, total=inside.total,
        replica=inside.replica if replicas or gathers or draws_as_one else None, gradients=updates.gradients,
        updates=updates.operations, of_replica=own, exchanged=Exchanged(sums, gathers), whole=whole,
        components=components_of(specs, concrete.inputs), own_losses=bool(replicas), flags=Flags(
            explicit_seeds=bool(replicas) and not draws_as_one, draws_as_one=draws_as_one, handed_in=recording.handed_in
        ),
    )
    forward = [marker for marker in sums if any(marker is each for each in inside.values)]
    if replicas:
        _require_before((*inside.values, *inside.gathers), updates.after)
        made = returned(recording.found, results)
        decided = decided_for_each_replica(traced, updates, made, forward, again, replicas)
    else:
        decided = decided_for_whole_batch(traced, updates, recording, forward)
    lines = source_lines(graph)
    with lines.told():
        item = capture(decided.traced, decided.joined)
    # In run() the sum of what is alike on all replicas is a multiple of it, also in an update.
    origins = Origins([*inside.sums, *inside.gathers], recording.found) if replicas else None
    require_in_updates(graph, updates.operations, origins)
    touched = {variable.name for variable in item.variables if variable.handle}
    return CapturedFunction(
        item, _rebuild(inside.result, flat, tensors),
        tuple(entry for entry in entries if entry.spec.name in touched), lines, decided.fixing,
        tuple(tf.TensorSpec.from_tensor(output) for output in results),
        # A function without a batch runs on one replica.
        (*(decided.notes if split or replicas else ()), *inside.notes_on(updates.operations), *explicit_draws(item)),
        decided.idle,
        tuple(outer), decided.reported,
    )


def _require_before(markers: Sequence[Any], after: Collection[str]) -> None:
    """Raise a CaptureError for a value that is reduced or gathered after the update of what it is made of."""
    for marker in markers:
        if marker.op.name in after:
            raise CaptureError(
                f"{marker.op.inputs[0].name!r} is reduced or gathered over the replicas, and it is made of variables "
                "that the function has updated: it is the same on all replicas. Use the value itself, which is the "
                "mean, and num_replicas_in_sync times it for the sum; or reduce it before the update."
            )


def _require_passable(outer: Sequence[Any], in_run: bool) -> None:
    """Raise a CaptureError for tensors of another trace that cannot become inputs."""
    for value in outer:
        if not in_run or value.dtype in (tf.resource, tf.variant):
            raise CaptureError(
                f"the function uses {value.name!r} ({value.dtype.name}) of another traced function. Pass it as an "
                "argument, or make it inside."
            )


def _trace(
    function: Callable[..., Any], parsed: Arguments, specs: Sequence[Any],
    context: Callable[[Inside], AbstractContextManager[Any]], replicas: int, held: frozenset[int],
) -> tuple[Any, Inside]:
    """One concrete function. TensorFlow traces a function twice if it makes variables; the last pass counts."""
    passes: list[Inside] = []

    def traced(*tensors: Any) -> list[Any]:
        *given, examples, total, replica = tensors
        with recorded() as recording:
            own = [tensor for tensor, whole in zip(given, parsed.whole, strict=False) if not whole]
            names = frozenset(tensor.op.name for tensor in (*own, examples, replica))
            inside = Inside(recording, examples, total, replica, replicas=replicas, own=names, held=held)
            passes.append(inside)
            args, kwargs = parsed.with_tensors(packed(specs, given))
            with context(inside), gathering(inside.gather):
                inside.result = tf.nest.map_structure(_as_tensor, function(*args, **kwargs))
        return [leaf for leaf in tf.nest.flatten(inside.result) if tf.is_tensor(leaf)]

    concrete = concrete_function(
        traced, signature_of(specs), lambda: passes[-1].recording.refusal if passes else None,
        "" if replicas else _REMEDY,
    )
    return concrete, passes[-1]


_INSTEAD = {
    tf.RaggedTensor: "value.to_tensor()", tf.SparseTensor: "tf.sparse.to_dense(value)",
    tf.IndexedSlices: "tf.convert_to_tensor(value)", tf.TensorArray: "value.stack()",
}
"""How a dense tensor is made of one of each type."""


def _as_tensor(value: Any) -> Any:
    """A result as a tensor if it has a value; None for an operation, such as the one an optimizer returns."""
    if value is None or isinstance(value, tf.Operation):
        return None
    instead = _INSTEAD.get(type(value))
    if isinstance(value, Iterator):  # its values come up after the trace only
        instead = "a list or a tuple of tensors"
    elif isinstance(value, tf.TensorShape) and not value.is_fully_defined():
        instead = "tf.shape(x)[0], which is that of the whole batch, or the sizes that are fixed, such as x.shape[1:]"
    elif instead is None:
        try:
            # An identity: a result that is an argument itself is computed, too.
            return tf.identity(tf.convert_to_tensor(value))
        except (TypeError, ValueError):
            inside = vars(value).values() if hasattr(value, "__dict__") else ()
            if not any(isinstance(each, tf.Tensor) and not hasattr(each, "numpy") for each in inside):
                return value
            instead = "its tensors: in a tuple, a list, a dict, a named tuple or an attrs class"
    raise CaptureError(
        f"the function that is marked, or that run() gets, returns a {type(value).__name__}. Replicas' results are "
        f"dense tensors. Return {instead}."
    )


def _entries(graph: Any, recording: Recording, variables: Variables) -> tuple[list[Entry], frozenset[str]]:
    """The variables that the function touches, and the names of those that no function touched before."""
    outside = {id(placeholder): value for value, placeholder in graph.captures}
    paths = {
        id(outside.get(id(each.variable.handle), each.variable.handle)): getattr(each.variable, "path", "")
        for call in recording.found for each in call.gradients if hasattr(each.variable, "handle")
    }
    # A variable that is watched does not show that its handle is asked for.
    touched = [(id(value), recording.variable_of(value, watched_variable)) for value, _ in graph.captures]
    known = [(handle, variable, variable in variables) for handle, variable in touched if variable is not None]
    entries = [variables.entry(variable, paths.get(handle, "")) for handle, variable, _ in known]
    return entries, frozenset(
        entry.spec.name for entry, (_, _, before) in zip(entries, known, strict=True) if not before
    )


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
