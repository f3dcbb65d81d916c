"""Trace one step of a Keras model into a flat graph, with a marker on every gradient.

In: a model, its `train_step` (or another step), and the specs of a batch. Out: a `CapturedStep`, with the `GraphItem`
that strategies and kernels take. This is the first stage of the flow.

No class of Keras is patched. Instances have hooks during the trace, and lose them in `finally`. The hooks record which
operations belong to `optimizer.apply`, scale the loss by a replica's share of the batch before the tape differentiates
it, and correct losses that are not means over examples (see `losses.py`).

>>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")], name="small")
>>> model.compile("sgd", "mse")
>>> data = (tf.zeros((4, 3)), tf.zeros((4, 1)))
>>> captured = trace_step(model, model.train_step, data, [tf.TensorSpec.from_tensor(part) for part in data], False)
>>> print(*[entry.spec for entry in captured.entries if entry.spec.kind != "optimizer"], sep="; ")
dense/kernel : f32[3,1]; dense/bias : f32[1]; metric/loss/total : f32[]; metric/loss/count : f32[]
>>> [gradient.variable for gradient in captured.item.gradients]
['dense/kernel', 'dense/bias']
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import keras
import tensorflow as tf

from autodist_core import capture
from autodist_core.capture import batch_axis
from autodist_core.capture.gradients import Recording
from autodist_core.errors import CaptureError
from autodist_core.reports.step_plan import explicit_draws
from autodist_core.runtime import composites
from autodist_core.seams.table import CONTROL_FLOW_GRAPH, CUSTOM_GRADIENT_IS_NAMED
from autodist_core.training import Captured
from autodist_keras import seams
from autodist_keras.capture import batch_norm, custom_gradients, losses, mixing, mixing_notes, own_losses, sums
from autodist_keras.capture.batch_norm_kernel import normalized
from autodist_keras.capture.build_ahead import build_ahead, slots_as_weights
from autodist_keras.capture.draws import place_of_draw
from autodist_keras.capture.losses import Losses
from autodist_keras.capture.metric_weights import weighted_metrics
from autodist_keras.capture.optimizer_kernels import fused
from autodist_keras.capture.optimizers import hooked_optimizer, optimizers_of, ranges_of
from autodist_keras.capture.required import along_two_axes, require_dense, require_optimizers
from autodist_keras.capture.variables import ModelVariables

Degrees = tuple[tuple[int | None, ...], ...]
"""How the terms of each number of a step count."""


@dataclass
class Trace:
    """The records of the hooks while one graph is traced, and the operations that the hooks add.

    `losses.py`, `batch_norm.py` and `mixing.py` read and write it.

    >>> from autodist_keras.capture.example import with_trace
    >>> with_trace(lambda trace: trace.share(tf.float32))
    0.75
    """

    graph: Any
    examples: Any
    total: Any
    replica: Any
    complete: bool
    """Whether model, optimizer, losses and metrics were built before the trace, so that every hook was in place."""
    ranges: frozenset[int] = frozenset()
    """The ids of the variables in which float8 layers keep ranges."""
    result: Any = None
    outputs: list[list[Any]] = field(default_factory=list)
    """The tensors of each result. A ragged or sparse one has several."""
    gradients: list[capture.Marked] = field(default_factory=list)
    updates: dict[int, tuple[int, int]] = field(default_factory=dict)
    sums: list[Any] = field(default_factory=list)
    gathers: list[Any] = field(default_factory=list)
    maxima: list[Any] = field(default_factory=list)
    weighting: list[Any] = field(default_factory=list)
    """The tensors in which a gradient is multiplied by this replica's share of the batch."""
    losses: Losses = field(default_factory=Losses)
    recording: Recording | None = None
    """The gradients that a training step of the user's own computes."""
    degrees: Degrees = ()
    """How the terms of each number count that a user's code makes of a batch (see `sums.py`)."""
    seen: mixing.Seen = field(default_factory=mixing.Seen)
    """The records by which `mixing.py` tells right values of the whole batch from others."""
    inside: int = 0
    """How many calls of `optimizer.apply` are nested at present."""
    refusal: CaptureError | None = None

    @property
    def updated(self) -> dict[str, int]:
        """The occurrence of each operation that an `apply` created, by the operation's name."""
        operations = self.graph.get_operations()
        return {
            operation.name: occurrence
            for occurrence, (first, last) in self.updates.items() for operation in operations[first:last]
        }

    def share(self, dtype: Any) -> Any:
        """This replica's share of the batch, as a tensor: its examples by all examples."""
        self._require_no_function()
        return tf.cast(self.examples / self.total, dtype)

    def inverse_share(self, dtype: Any) -> Any:
        """All examples by this replica's examples, as a tensor."""
        self._require_no_function()
        return tf.cast(self.total / self.examples, dtype)

    def require_top(self, what: str) -> None:
        """Raise unless the current graph is the step's own, not a loop's or a nested function's."""
        if tf.compat.v1.get_default_graph() is not self.graph:
            self._refuse(
                f"{what} inside a loop, a conditional or a nested tf.function of the training step. "
                "Do it at the top level of train_step (without a @tf.function decorator), once per step and optimizer."
            )

    def _require_no_function(self) -> None:
        """Raise inside a tf.function that the step calls. It would keep tensors that belong to this trace alone."""
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, CONTROL_FLOW_GRAPH.get()):
            graph = graph.outer_graph
        if graph is not self.graph:
            self._refuse(
                "a metric is updated, or a loss computed, that needs to know how large a replica's part of the batch "
                "is, inside a tf.function that the training step calls. Take its @tf.function away, or let it return "
                "what metrics are updated with."
            )

    def _refuse(self, why: str) -> NoReturn:
        # TensorFlow wraps an error that a nested function raises. `_trace` raises this one instead.
        self.refusal = CaptureError(why)
        raise self.refusal

    def sum_over_replicas(self, value: Any) -> Any:
        """A marker of a value. The kernels replace the marker by the sum of the value over the replicas."""
        return self._marked(value, "a sum over replicas is needed", "sum_over_replicas", self.sums)

    def rows_of_replicas(self, value: Any) -> Any:
        """A marker of a value. The kernels replace the marker by the rows of all replicas."""
        return self._marked(value, "the whole batch is needed", "rows_of_replicas", self.gathers)

    def _marked(self, value: Any, what: str, name: str, markers: list[Any]) -> Any:
        self.require_top(what)
        markers.append(tf.identity(tf.stop_gradient(value), name=name))
        return markers[-1]


@dataclass(frozen=True)
class CapturedStep(Captured):
    """A captured step, with the parts of it that know Keras.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> data = (tf.zeros((4, 3)), tf.zeros((4, 1)))
    >>> captured = trace_step(model, model.train_step, data, [tf.TensorSpec.from_tensor(part) for part in data], False)
    >>> captured.rebuild([0.25]), captured.notes.trained
    ({'loss': 0.25}, ())
    """

    other_notes: tuple[str, ...] = ()
    """The plan's notes on how the step was captured."""
    notes: mixing_notes.Notes = field(default_factory=mixing_notes.Notes)
    """The plan's notes on computations that mix the examples of a batch."""
    owner: Callable[[str], str] = str
    """Says whose an operation is, by its name."""
    along_two_axes: Sequence[tuple[int, str]] = ()
    """The results of `predict` that have the examples along two axes."""


def trace_step(
    model: Any, step: Callable[[Any], Any], data: Any, specs: Sequence[Any], concat: bool,
    fused_kernels: bool = False, draws_as_one: bool = False, degrees: Degrees = (),
) -> CapturedStep:
    """Trace `step(data)` for data of the given specs and capture it as a GraphItem. The module has an example.

    `specs` has one entry for each leaf of `data` that is not None. `concat` says that the results have one row for each
    example. `fused_kernels` says that updates and batch normalization may run in TensorFlow's kernels, and
    `draws_as_one` that replicas draw the random numbers of one device, as far as they can. Once it is known, `degrees`
    says how the terms of numbers count that a user's code makes of a batch.
    """
    build_ahead(model, step, data, specs)
    function, trace = _trace(model, step, data, specs, fused_kernels, degrees)
    if not concat:
        require_dense(trace.result)
    if not trace.complete:
        # The trace built the missing parts, by Keras's own rules and without hooks. Trace again, with all hooks.
        function, trace = _trace(model, step, data, specs, fused_kernels, degrees)
    _require_used(model, step, trace)
    graph = function.graph
    variables = ModelVariables(model, optimizers_of(model), _by_first_read(graph))
    flat = keras.tree.flatten(trace.result)
    tensors = [index for index, value in enumerate(flat) if tf.is_tensor(value)]
    inputs = list(chain.from_iterable(composites.grouped(specs, function.inputs)))
    traced = capture.Traced(
        graph=graph,
        sources=[capture.Source(entry.spec, entry.handle) for entry in variables.entries],
        inputs=inputs, components=composites.components_of(specs, inputs),
        outputs=list(chain.from_iterable(trace.outputs)),
        examples=trace.examples, total=trace.total, weighting=trace.weighting, concat_outputs=concat,
        replica=trace.replica if trace.gathers or draws_as_one else None,
        gradients=[replace(marked, variable=variables.name_of(marked.variable)) for marked in trace.gradients],
        updates=trace.updated, exchanged=capture.Exchanged(trace.sums, trace.gathers, trace.maxima),
        result_parts=[part for parts in trace.outputs if len(parts) > 1 for part in parts],
        flags=capture.Flags(
            jit_compile=bool(model.jit_compile), draws_as_one=draws_as_one,
            handed_in=bool(trace.recording and trace.recording.handed_in),
        ),
    )
    # The structure without its tensors: these would keep the graph alive.
    structure = keras.tree.map_structure(lambda _: 0, trace.result)
    plain = [None if tf.is_tensor(value) else value for value in flat]
    specs_of_results = [(index, composites.spec_of(flat[index])) for index in tensors]
    counts_of_parts = list(map(len, trace.outputs))

    def rebuild(values: Sequence[Any]) -> Any:
        leaves, remaining = list(plain), iter(values)
        for (index, spec), count in zip(specs_of_results, counts_of_parts, strict=True):
            leaves[index] = composites.result_of(spec, [next(remaining) for _ in range(count)])
        return keras.tree.pack_sequence_as(structure, leaves)

    traced = capture.with_longest(capture.combined_as_written(traced))
    own = own_losses.OwnLosses(trace)
    followed = partial(mixing.followed, seen=trace.seen, known=own.known)
    found = followed(traced := sums.with_totals(traced, trace.seen, followed))
    of_terms = sums.degrees(trace, found.state_of)
    if not degrees and any(map(any, of_terms)):
        # Only the finished trace tells how the terms of these numbers count.
        return trace_step(model, step, data, specs, concat, fused_kernels, draws_as_one, of_terms)
    added_up, counted, notes_on_losses = own.counts(found.state_of)
    counted = {**traced.counted, **counted, **trace.losses.counted(found.state_of)}
    traced = replace(traced, added_up=added_up, counted=counted)
    lines = capture.source_lines(graph)
    with lines.told():
        item = capture.capture(traced, batch_axis.joined(traced, found.state_of))
    require_optimizers(model, variables, item)
    touched = {variable.name for variable in item.variables if variable.handle}
    entries = tuple(entry for entry in variables.entries if entry.spec.name in touched)
    paths = ["/".join(map(str, path)) for path, _ in keras.tree.flatten_with_path(trace.result)]
    # A ragged or sparse result has several outputs.
    results = [paths[index] for index, parts in zip(tensors, trace.outputs, strict=True) for _ in parts]
    other_notes = (*notes_on_losses, *mixing_notes.said_of_results(item, results))
    found = replace(found, of_gradients=capture.own_gradient_uses(found.of_gradients, traced, item))
    notes = mixing_notes.notes(model, found, trace.seen, results, other_notes, _place(model, step))
    draws = explicit_draws(item, partial(place_of_draw, list(model._flatten_layers())))
    notes = replace(notes, trained=(*notes.trained, *draws))
    owner = mixing_notes.owners(model, trace.seen, _place(model, step))
    two = along_two_axes(graph, inputs, traced.outputs) if concat and not traced.components.parts else ()
    return CapturedStep(item, rebuild, entries, lines, notes.fixing, other_notes, notes, owner, two)


def _by_first_read(graph: Any) -> list[Any]:
    """The variables of a graph, those that it captured first, first: a restarted program has the same order.

    TensorFlow keeps a graph's variables in a set, and gives them in the order of their addresses in memory.
    """
    places = {id(handle): place for place, (handle, _) in enumerate(graph.captures)}
    with graph.as_default():  # where nobody looks at a value
        return sorted(graph.variables, key=lambda variable: places.get(id(variable.handle), len(places)))


def _place(model: Any, step: Callable[[Any], Any]) -> str:
    """What the notes call the step itself, for operations of no layer."""
    return next((each for each in ("test_step", "predict_step") if step == getattr(model, each)), "the training step")


def _require_used(model: Any, step: Callable[[Any], Any], trace: Trace) -> None:
    """Raise a SeamError if Keras's own training step did not call the methods that the hooks replace."""
    losses.require_asked(model, step, trace)
    # A step that a user wrote may be a plain function, and may have no optimizer.
    if getattr(step, "__func__", None) is not keras.Model.train_step or not model.trainable_weights:
        return
    if not trace.updates:
        raise seams.STEP_APPLIES.error("it updated its weights without")
    if not trace.weighting:
        raise seams.STEP_SCALES.error("it computed gradients of a loss that did not go there")


def _trace(
    model: Any, step: Callable[[Any], Any], data: Any, specs: Sequence[Any], fused_kernels: bool, degrees: Degrees,
) -> tuple[Any, Trace]:
    """One concrete function of the step, and the records of its hooks.

    TensorFlow traces a function twice if variables are created. Each pass has hooks of its own; the last pass counts.
    """
    present = [leaf is not None for leaf in keras.tree.flatten(data)]
    passes: list[Trace] = []

    def function(*arguments: Any) -> list[Any]:
        *tensors, examples, total, replica = arguments
        trace = Trace(
            tf.compat.v1.get_default_graph(), examples, total, replica, _is_built(model), ranges_of(model),
            degrees=degrees,
        )
        passes.append(trace)
        remaining = iter(composites.packed(specs, tensors))
        leaves = [next(remaining) if here else None for here in present]
        with _hooks(model, trace, fused_kernels), own_losses.recorded_in(model, step, trace):
            result = step(keras.tree.pack_sequence_as(data, leaves))
            trace.result = keras.tree.map_structure(lambda each: sums.counted(_as_tensor(each), trace), result)
        results = filter(tf.is_tensor, keras.tree.flatten(trace.result))
        trace.outputs = list(map(composites.parts_of_result, results))
        return list(chain.from_iterable(trace.outputs))

    signature = composites.signature_of(specs)
    try:
        traced = capture.concrete_function(function, signature, lambda: passes[-1].refusal if passes else None)
    finally:
        forgotten = [custom_gradients.forget(trace.graph) for trace in passes]
    if passes[-1].weighting and not forgotten[-1]:
        raise CUSTOM_GRADIENT_IS_NAMED.error("a step has none, although its loss was given one")
    return traced, passes[-1]


@contextmanager
def _hooks(model: Any, trace: Trace, fused_kernels: bool) -> Iterator[None]:
    with slots_as_weights(model), ExitStack() as hooks:
        for optimizer in optimizers_of(model):
            hooks.enter_context(hooked_optimizer(optimizer, trace))
            if fused_kernels:
                hooks.enter_context(fused(optimizer))
        hooks.enter_context(losses.corrected(model, trace))
        hooks.enter_context(weighted_metrics(model, trace))
        hooks.enter_context(batch_norm.synchronized(model, trace))
        if fused_kernels:
            hooks.enter_context(normalized(model, trace))
        hooks.enter_context(mixing.watched(model, trace))
        hooks.enter_context(capture.gathering(lambda value: batch_norm.gathered(value, trace)))
        yield


def _as_tensor(value: Any) -> Any:
    """A result of a step as a tensor, if it is a variable. The variable is read at the end of the step."""
    return tf.convert_to_tensor(value) if isinstance(value, (keras.Variable, tf.Variable)) else value


def _is_built(model: Any) -> bool:
    parts = [model, model.optimizer if model.compiled else None, model._compile_loss, model._compile_metrics]
    return all(part is None or part.built for part in parts)
