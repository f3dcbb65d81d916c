"""Record which gradients a function computes while it is traced, and mark them.

In: a function that is being traced. Out: `Differentiation` values, one for each call of `GradientTape.gradient` or
`tf.gradients` with respect to variables. For a step that trains a kernel and a bias::

    Differentiation(targets=(loss,), seeds=(ones,), gradients=(Marked(kernel, 0, marker), Marked(bias, 0, marker)))

A marker is a `tf.identity` behind a gradient. The function computes with the marker in the gradient's place, so that
the graph shows where compute ends and the update begins. A seed is the tensor from which a tape begins: by it a
gradient is found to be one of a sum or of a mean.

TensorFlow's own functions are hooked for the time of the trace, and in the thread that traces only.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import tensorflow as tf

from autodist_core.capture.gradients.terms import factors, terms_of, without
from autodist_core.capture.traced import Marked
from autodist_core.capture.traversal import function_graphs
from autodist_core.errors import CaptureError
from autodist_core.seams.seam import owner
from autodist_core.seams.table import CONTROL_FLOW_GRAPH, GRADIENTS_HELPER, VARIABLE_HANDLE


@dataclass(frozen=True)
class Differentiation:
    """One call that computes gradients of variables.

    >>> from autodist_core.capture.gradients.example import example_loop, recorded_trace
    >>> kernel = tf.Variable(tf.ones((3, 1)))
    >>> (call,) = recorded_trace(example_loop(kernel))[1].found
    >>> [target.op.name for target in call.targets], [seed.op.name for seed in call.seeds], len(call.gradients)
    (['Mean'], ['seed'], 1)
    """

    targets: tuple[Any, ...]
    """The tensors that are differentiated: a loss, or several whose sum counts."""
    seeds: tuple[Any, ...]
    """For each target, the tensor with which differentiation begins; None for ones that TensorFlow makes."""
    gradients: tuple[Marked, ...]
    """They name the variables as the function did, and have no occurrences yet."""

    @property
    def markers(self) -> list[Any]:
        """The outputs of the gradients' markers."""
        return [marker for gradient in self.gradients for marker in gradient.markers]


@dataclass(frozen=True)
class OfExamples:
    """One call that computes gradients with respect to tensors, such as a batch or activations.

    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> def slope(x):
    ...     with tf.GradientTape() as tape:
    ...         tape.watch(x)
    ...         loss = tf.reduce_sum(x * x, name="loss")
    ...     return tape.gradient(loss, x)
    >>> (found,) = recorded_trace(slope)[1].of_examples
    >>> [source.op.name for source in found.sources], [target.op.name for target, _ in found.targets]
    (['x'], ['loss'])
    """

    gradients: tuple[tuple[Any, Any], ...]
    """The gradients, each with the tensor with respect to which it is computed."""
    targets: tuple[tuple[Any, Any], ...]
    """The tensors that are differentiated, each with the tensor with which differentiation begins."""
    sources: tuple[Any, ...]
    """All tensors with respect to which the call computes gradients."""


@dataclass
class Recording:
    """What one trace has computed of gradients so far.

    >>> from autodist_core.capture.gradients.example import example_loop, recorded_trace
    >>> kernel = tf.Variable(tf.ones((3, 1)))
    >>> recording = recorded_trace(example_loop(kernel))[1]
    >>> [variable is kernel for _, variable in recording.variables.values()], len(recording.found)
    ([True], 1)
    """

    graph: Any = None
    found: list[Differentiation] = field(default_factory=list)
    variables: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """The variables that the function touches, each with its handle, by the `id` of the handle."""
    of_examples: list[OfExamples] = field(default_factory=list)
    refusal: CaptureError | None = None
    """The error that was raised. TensorFlow wraps an error that a nested function raises."""
    marks: bool = True
    """Whether gradients get markers, and gradients that get none are refused."""
    known: Sequence[tuple[Any, Any]] = ()
    """Tensors that the front knows, with their states. They are terms of a loss that stay whole."""
    leaves: Callable[[Sequence[Any]], bool] = lambda targets: False
    """Whether the front itself says how targets count. Their differentiation is not recorded."""
    elsewhere: bool = False
    """Whether gradients were computed that are not recorded, such as those of a `jacobian`."""
    unseen: bool = False
    """Whether gradients of variables were computed that could not be recorded."""
    computing: bool = False
    """Whether a differentiation is under way. What it differentiates itself, as a recomputation does, is part of it."""
    handed_in: bool = False
    """Whether a differentiation began with a tensor, no number, that the function gave it."""

    def variable_of(self, handle: Any, otherwise: Callable[[Any], Any]) -> Any:
        """The variable of a handle, if the function has asked for it."""
        found = self.variables.get(id(handle))
        return otherwise(handle) if found is None else found[1]

    def applies_here(self, sources: Sequence[Any]) -> bool:
        """Whether a call in the current graph is to be recorded: it is about variables, and is not TensorFlow's own.

        Gradients of variables inside a loop or a nested function are refused, since nothing shows where they go.
        """
        graph = tf.compat.v1.get_default_graph()
        if graph is self.graph:
            return any(handle_of(source) is not None for source in sources)
        while isinstance(graph, CONTROL_FLOW_GRAPH.get()):
            graph = graph.outer_graph
        nested = any(outer is self.graph for outer in function_graphs(graph))
        if nested and any(_is_variable(source) for source in sources):
            self.refuse(
                "gradients of variables are computed inside a loop, a conditional or a nested tf.function. Compute "
                "them at the top level of the function that AutoDist.function marks: take the @tf.function of the "
                "nested function away, or write the loop around the marked function."
            )
        return False

    def is_here(self) -> bool:
        """Whether the current graph is the one that is traced."""
        return tf.compat.v1.get_default_graph() is self.graph

    def note_handed_in(self, given: Any) -> None:
        """Note what a caller lets a differentiation begin with. Nothing checks the shape of such a tensor before."""
        shapes = (tf.TensorShape(getattr(each, "shape", ())) for each in tf.nest.flatten(given) if each is not None)
        self.handed_in |= any(shape.rank != 0 for shape in shapes)

    def noted(self, targets: Sequence[Any], seeds: Sequence[Any], sources: Sequence[Any], found: Any) -> list[Any]:
        """The gradients, which are recorded: those of variables with markers behind them, others behind an identity.

        An identity has a state. If a loss is a mean, gradients with respect to tensors count by the replica's share.
        """
        tensors = tuple(each for each in sources if tf.is_tensor(each) and handle_of(each) is None)
        of_variables, of_tensors, results = [], [], []
        for source, gradient in zip(sources, found, strict=True):
            if isinstance(gradient, tf.Tensor) and any(source is each for each in tensors):
                gradient = tf.identity(gradient, name="gradient_by_tensor")
                of_tensors.append((gradient, source))
            elif gradient is not None and handle_of(source) is not None:
                values, indices = _mark(gradient) if self.marks else _parts(gradient)
                of_variables.append(Marked(source, 0, values, indices))
                if self.marks:
                    gradient = values if indices is None else tf.IndexedSlices(values, indices, gradient.dense_shape)
            results.append(gradient)
        if tensors:
            self.of_examples.append(OfExamples(tuple(of_tensors), tuple(zip(targets, seeds, strict=False)), tensors))
        if of_variables:
            self.found.append(Differentiation(tuple(targets), tuple(seeds), tuple(of_variables)))
        return results

    def refuse(self, why: str) -> None:
        """Raise a CaptureError, or note that there are gradients of variables which are not recorded."""
        if not self.marks:
            self.unseen = True
            return
        self.refusal = CaptureError(why)
        raise self.refusal


_current: ContextVar[Recording | None] = ContextVar("autodist_recording", default=None)
_installing = threading.RLock()
_installed: list[Recording] = []
_originals: list[tuple[Any, str, Any]] = []
"""The functions that are hooked, each with its holder and name."""


@contextmanager
def recorded(**settings: Any) -> Iterator[Recording]:
    """Record and mark the gradients that this thread computes in a graph; `settings` are those of the `Recording`.

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
    recording = Recording(tf.compat.v1.get_default_graph(), **settings)
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
            _hook(tf.GradientTape, "gradient", lambda original: _calling(_gradient, original))
            _hook(tf.GradientTape, "jacobian", lambda original: _calling(_jacobian, original))
            _hook(owner(VARIABLE_HANDLE.owner), VARIABLE_HANDLE.name, _noted)
            _hook(owner(GRADIENTS_HELPER.owner), GRADIENTS_HELPER.name, lambda original: _calling(_gradients, original))
        _installed.append(recording)
    try:
        yield
    finally:
        with _installing:
            _installed.remove(recording)
            while not _installed and _originals:
                holder, name, original = _originals.pop()
                setattr(holder, name, original)


def _hook(holder: Any, name: str, replacing: Callable[[Any], Any]) -> None:
    """Replace a function. The replacement holds the original: another thread may call it after the hook is gone."""
    original = vars(holder)[name]
    _originals.append((holder, name, original))
    setattr(holder, name, replacing(original))


def _calling(replacement: Callable[..., Any], original: Any) -> Callable[..., Any]:
    @wraps(original)
    def called(*args: Any, **named: Any) -> Any:
        return replacement(original, *args, **named)

    return called


def _noted(original: property) -> property:
    def handle(variable: Any) -> Any:
        assert original.fget is not None
        found, recording = original.fget(variable), _current.get()
        if recording is not None:
            # An assignment returns another object for the same variable. The first object is the variable itself.
            recording.variables.setdefault(id(found), (found, variable))
        return found

    return property(handle)


def _gradient(
    of_tape: Any, self: Any, target: Any, sources: Any, output_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> Any:
    def compute(targets: Any, given: Any) -> Any:
        return of_tape(self, targets, sources, given, unconnected_gradients)

    return _differentiated(compute, target, sources, output_gradients, of_tensors=True)


def _jacobian(of_tape: Any, self: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
    recording = _current.get()
    if recording is not None and recording.applies_here(tf.nest.flatten(sources)):
        recording.refuse(
            "tape.jacobian computes derivatives of variables, and it is not known how the replicas' become one. Use "
            "tape.gradient for a loss; compute a jacobian in a function without a mark."
        )
    return of_tape(self, target, sources, *rest, **named)


def _gradients(of_graph: Any, ys: Any, xs: Any, grad_ys: Any = None, *rest: Any, **named: Any) -> Any:
    def compute(targets: Any, given: Any) -> Any:
        return of_graph(targets, xs, given, *rest, **named)

    # Loops and conditionals differentiate graphs of their own, with respect to tensors.
    return _differentiated(compute, ys, xs if isinstance(xs, list | tuple) else [xs], grad_ys, of_tensors=False)


def _differentiated(compute: Callable[[Any, Any], Any], target: Any, sources: Any, given: Any, of_tensors: bool) -> Any:
    """What `compute` gives of targets and of what differentiation begins with, recorded if it is to be.

    `of_tensors` says that gradients are recorded, too, that are about tensors alone.
    """
    flat, recording = tf.nest.flatten(sources), _current.get()
    if recording is None or recording.computing:
        return compute(target, given)
    recorded = recording.applies_here(flat)
    if recorded or of_tensors:
        recording.note_handed_in(given)
    recording.computing = True
    try:
        if not recorded and not (of_tensors and recording.is_here()):
            recording.elsewhere |= of_tensors or recording.is_here()
            return compute(target, given)
        whole = tf.nest.flatten(target)
        if recording.leaves(whole):
            return compute(target, given)
        targets, seeds = _terms(whole, given, flat, recording.known)
        found = recording.noted(targets, seeds or (), flat, tf.nest.flatten(compute(targets, seeds)))
        return tf.nest.pack_sequence_as(sources, found)
    finally:
        recording.computing = False


def _terms(
    targets: Sequence[Any], given: Any, sources: Sequence[Any], known: Sequence[tuple[Any, Any]]
) -> tuple[list[Any], list[Any] | None]:
    """The numbers that are added up in the targets, each with a tensor with which differentiation begins.

    A term may be a sum over the examples and another one a mean, or a penalty of the weights: each counts in its way.
    """
    if not all(isinstance(target, tf.Tensor) for target in targets):
        return list(targets), given
    tensors: list[Any] = []
    seeds: list[Any] = []
    firsts = [None] * len(targets) if given is None else tf.nest.flatten(given)
    is_fixed = without(_operations_of(sources))
    ends = {id(each) for each in (*sources, *(tensor for tensor, _ in known))}
    for target, first in zip(targets, firsts, strict=True):
        terms = terms_of(target, is_fixed, ends)
        first = tf.ones_like(target) if first is None else tf.convert_to_tensor(first, target.dtype)
        tensors += [term.tensor for term in terms]
        seeds += [tf.identity(factor, name="seed") for factor in factors(terms, first)]
    return tensors, seeds


def _operations_of(sources: Sequence[Any]) -> set[str]:
    """The names of the operations of the current graph that give these variables and tensors."""
    outside = {id(handle) for source in sources if (handle := handle_of(source)) is not None}
    captured = tf.compat.v1.get_default_graph().captures
    names = {placeholder.op.name for value, placeholder in captured if id(value) in outside}
    return names | {source.op.name for source in sources if tf.is_tensor(source) and not _is_variable(source)}


def _mark(gradient: Any) -> tuple[Any, Any]:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.identity(gradient.values, name="gradient_rows"), tf.identity(gradient.indices, name="gradient_at")
    return tf.identity(gradient, name="gradient"), None


def _parts(gradient: Any) -> tuple[Any, Any]:
    return (gradient.values, gradient.indices) if isinstance(gradient, tf.IndexedSlices) else (gradient, None)


def _is_variable(source: Any) -> bool:
    return isinstance(source, tf.Variable) or (not isinstance(source, tf.Tensor) and hasattr(source, "handle"))


def handle_of(source: Any) -> Any:
    """The handle of a variable, or of a tensor that is a handle; None for a tensor with values.

    >>> handle_of(tf.Variable(1.0)).dtype.name, handle_of(tf.constant(1.0))
    ('resource', None)
    """
    if _is_variable(source):
        return source.handle
    return source if tf.is_tensor(source) and source.dtype == tf.resource else None
