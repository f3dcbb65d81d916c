"""Record which gradients a function computes while it is traced, and mark them.

In: a function that is being traced. Out: `Differentiation` values, one for each call of `GradientTape.gradient` or
`tf.gradients` with respect to variables. For a step that trains a kernel and a bias::

    Differentiation(targets=(loss,), seeds=(ones,), gradients=(Recorded(kernel, marker), Recorded(bias, marker)))

A marker is a `tf.identity` behind a gradient. The function computes with the marker in the gradient's place, so that
the graph shows where compute ends and the update begins (see `updates.py`). A seed is the tensor from which a tape
begins: by it a gradient is found to be one of a sum or of a mean.

TensorFlow's own functions are hooked for the time of the trace, and in the thread that traces only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.loops.terms import terms_of
from autodist_core.seams.seam import owner
from autodist_core.seams.table import CONTROL_FLOW_GRAPH, GRADIENTS_HELPER, VARIABLE_HANDLE


@dataclass(frozen=True)
class Recorded:
    """One gradient of a variable: the variable as the function named it, and the outputs of its markers."""

    variable: Any
    values: Any
    indices: Any = None

    @property
    def markers(self) -> tuple[Any, ...]:
        """The outputs of the markers."""
        return (self.values,) if self.indices is None else (self.values, self.indices)


@dataclass(frozen=True)
class Differentiation:
    """One call that computes gradients of variables."""

    targets: tuple[Any, ...]
    """The tensors that are differentiated: a loss, or several, of which the sum counts."""
    seeds: tuple[Any, ...]
    """For each target, the tensor with which differentiation begins."""
    gradients: tuple[Recorded, ...]


@dataclass
class Recording:
    """What one trace has computed of gradients so far."""

    graph: Any = None
    found: list[Differentiation] = field(default_factory=list)
    variables: dict[int, Any] = field(default_factory=dict)
    """The variables that the function touches, by the `id` of their handles."""
    of_examples: list[tuple[Any, Any, tuple[Any, ...]]] = field(default_factory=list)
    """The target, its seed, and the tensors with respect to which gradients are computed, variables left out."""
    given: set[int] = field(default_factory=set)
    """The `id`s of the seeds that the function gave (`output_gradients`)."""
    refusal: CaptureError | None = None
    """The error that was raised. TensorFlow wraps an error that a nested function raises."""

    def is_marked(self, tensor: Any) -> bool:
        """Whether a tensor is a gradient behind its marker."""
        return any(tensor is each.values for call in self.found for each in call.gradients)

    def applies_here(self, sources: Sequence[Any]) -> bool:
        """Whether a call in the current graph is to be recorded: it is about variables, and is not TensorFlow's own.

        Gradients of variables inside a loop or a nested function are refused, since nothing shows where they go.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph is self.graph:
            return any(_handle(source) is not None for source in sources)
        while isinstance(graph, CONTROL_FLOW_GRAPH.get()):
            graph = graph.outer_graph
        outer = graph
        while outer is not None and outer is not self.graph:
            outer = getattr(outer, "outer_graph", None)  # the graph of a process has none
        if outer is self.graph and any(_is_variable(source) for source in sources):
            self.refusal = CaptureError(
                "gradients of variables are computed inside a loop, a conditional or a nested tf.function. Compute "
                "them at the top level of the function that AutoDist.function marks: take the @tf.function of the "
                "nested function away, or write the loop around the marked function."
            )
            raise self.refusal
        return False

    def is_here(self) -> bool:
        """Whether the current graph is the one that is traced."""
        return tf.compat.v1.get_default_graph() is self.graph

    def note_examples(self, targets: Sequence[Any], seeds: Sequence[Any], sources: Sequence[Any]) -> None:
        """Note gradients with respect to tensors, such as a batch: those of a mean count by the replica's share."""
        tensors = tuple(each for each in sources if tf.is_tensor(each) and _handle(each) is None)
        if tensors:
            self.of_examples += [(target, seed, tensors) for target, seed in zip(targets, seeds, strict=False)]

    def marked(self, targets: Sequence[Any], seeds: Sequence[Any], sources: Sequence[Any], found: Any) -> list[Any]:
        """The gradients with markers behind them, which are recorded."""
        results, recorded = [], []
        for source, gradient in zip(sources, found, strict=True):
            if gradient is None or _handle(source) is None:
                results.append(gradient)
                continue
            values, indices = _mark(gradient)
            recorded.append(Recorded(source, values, indices))
            results.append(values if indices is None else tf.IndexedSlices(values, indices, gradient.dense_shape))
        if recorded:
            self.found.append(Differentiation(tuple(targets), tuple(seeds), tuple(recorded)))
        return results


_current: ContextVar[Recording | None] = ContextVar("autodist_recording", default=None)
_installing = threading.RLock()
_installed: list[Recording] = []
_originals: dict[tuple[Any, str], Any] = {}
"""The functions that are hooked, by their holder and name."""


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record and mark the gradients that this thread computes in a graph.

    >>> weight = tf.Variable(3.0)
    >>> @tf.function
    ... def step(x):
    ...     with recorded() as recording:
    ...         with tf.GradientTape() as tape:
    ...             loss = x * weight
    ...         tape.gradient(loss, [weight])
    ...     print([each.values.op.type for each in recording.found[0].gradients])
    >>> graph = step.get_concrete_function(tf.TensorSpec([], tf.float32))
    ['Identity']
    """
    recording = Recording(tf.compat.v1.get_default_graph())
    with _hooks(recording):
        token = _current.set(recording)
        try:
            yield recording
        finally:
            _current.reset(token)


@contextmanager
def _hooks(recording: Recording) -> Iterator[None]:
    """Hook TensorFlow's functions while at least one thread records."""
    with _installing:
        if not _installed:
            _hook(tf.GradientTape, "gradient", _gradient)
            _hook(tf.GradientTape, "jacobian", _jacobian)
            _hook(owner(VARIABLE_HANDLE.owner), VARIABLE_HANDLE.name, property(_noted_handle))
            _hook(owner(GRADIENTS_HELPER.owner), GRADIENTS_HELPER.name, _gradients)
        _installed.append(recording)
    try:
        yield
    finally:
        with _installing:
            _installed.remove(recording)
            while not _installed and _originals:
                # A hook that another thread is about to call needs its original until the hook is gone.
                (holder, name), original = next(reversed(_originals.items()))
                setattr(holder, name, original)
                _originals.pop((holder, name))


def _hook(holder: Any, name: str, replacement: Any) -> None:
    _originals[holder, name] = vars(holder)[name]
    setattr(holder, name, replacement)


def _noted_handle(variable: Any) -> Any:
    handle = _originals[owner(VARIABLE_HANDLE.owner), VARIABLE_HANDLE.name].fget(variable)
    recording = _current.get()
    if recording is not None:
        # An assignment returns another object for the same variable. The first object is the variable itself.
        recording.variables.setdefault(id(handle), variable)
    return handle


def _gradient(
    self: Any, target: Any, sources: Any, output_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> Any:
    of_tape, recording = _originals[tf.GradientTape, "gradient"], _current.get()
    flat = tf.nest.flatten(sources)
    if recording is None or not (recording.applies_here(flat) or recording.is_here()):
        return of_tape(self, target, sources, output_gradients, unconnected_gradients)
    targets, seeds = _terms(tf.nest.flatten(target), output_gradients)
    found = of_tape(self, targets, sources, seeds, unconnected_gradients)
    recording.note_examples(targets, seeds or (), flat)
    recording.given |= set() if output_gradients is None else {id(seed) for seed in seeds or ()}
    marked = recording.marked(targets, seeds or (), flat, tf.nest.flatten(found))
    return tf.nest.pack_sequence_as(sources, marked)


def _jacobian(self: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
    recording = _current.get()
    if recording is not None and recording.applies_here(tf.nest.flatten(sources)):
        recording.refusal = CaptureError(
            "tape.jacobian computes derivatives of variables, and it is not known how the replicas' become one. Use "
            "tape.gradient for a loss; compute a jacobian in a function without a mark."
        )
        raise recording.refusal
    return _originals[tf.GradientTape, "jacobian"](self, target, sources, *rest, **named)


def _gradients(ys: Any, xs: Any, grad_ys: Any = None, *rest: Any, **named: Any) -> Any:
    of_graph, recording = _originals[owner(GRADIENTS_HELPER.owner), GRADIENTS_HELPER.name], _current.get()
    flat = list(xs) if isinstance(xs, list | tuple) else [xs]
    if recording is None or not recording.applies_here(flat):
        return of_graph(ys, xs, grad_ys, *rest, **named)
    targets, seeds = _terms(list(ys) if isinstance(ys, list | tuple) else [ys], grad_ys)
    return recording.marked(targets, seeds or (), flat, of_graph(targets, xs, seeds, *rest, **named))


def _terms(targets: Sequence[Any], given: Any) -> tuple[list[Any], list[Any] | None]:
    """The numbers that are added up in the targets, each with a tensor with which differentiation begins.

    A term may be a sum over the examples and another one a mean, or a penalty of the weights: each counts in its way.
    """
    if not all(isinstance(target, tf.Tensor) for target in targets):
        return list(targets), given
    seeds = [None] * len(targets) if given is None else tf.nest.flatten(given)
    pairs = [
        (term.tensor, term.signed(tf.ones_like(term.tensor) if seed is None else seed))
        for target, seed in zip(targets, seeds, strict=True) for term in terms_of(target)
    ]
    return [target for target, _ in pairs], [tf.identity(seed, name="seed") for _, seed in pairs]


def _mark(gradient: Any) -> tuple[Any, Any]:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.identity(gradient.values, name="gradient_rows"), tf.identity(gradient.indices, name="gradient_at")
    return tf.identity(gradient, name="gradient"), None


def _is_variable(source: Any) -> bool:
    return isinstance(source, tf.Variable) or (not isinstance(source, tf.Tensor) and hasattr(source, "handle"))


def _handle(source: Any) -> Any:
    """The handle of a variable, or of a tensor that is a handle; None for a tensor with values."""
    if _is_variable(source):
        return source.handle
    return source if tf.is_tensor(source) and source.dtype == tf.resource else None


def handle_of(recorded: Recorded) -> Any:
    """The handle of the variable of a gradient, in the graph that is traced or outside of it."""
    return _handle(recorded.variable)
