"""Traced: what a front hands to `capture`, one flat function graph and what the front knows about it.

In: nothing; a front fills these values. Out: the first input of every module of this folder. For a layer with a kernel
and a bias, trained on a batch of inputs and labels::

    graph        the FuncGraph of the step
    sources      kernel, bias, learning rate, ...: each variable and its handle
    inputs       the placeholders of inputs and labels
    outputs      the loss
    gradients    Marked("kernel", 0, marker), Marked("bias", 0, marker)
    updates      {"sgd/Mul": 0, "sgd/AssignSubVariableOp": 0, ...}: the operations of the update
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf

from autodist_core.capture.traversal import computed_from
from autodist_core.step.graph_item import Variable


@dataclass(frozen=True)
class Marked:
    """A gradient on its way into an optimizer: its variable, its occurrence, and the outputs of its markers.

    A dense gradient has no `indices`.

    >>> from autodist_core.capture.example import example_traced
    >>> (gradient,) = example_traced().gradients
    >>> gradient.variable, gradient.occurrence, gradient.values.name, gradient.indices
    ('kernel', 0, 'marker:0', None)
    """

    variable: Any
    """Its name; while the function is traced, the variable itself."""
    occurrence: int
    values: Any
    indices: Any = None
    alike: bool = False
    """Whether the gradient is the same on all replicas, and is applied once."""

    @property
    def markers(self) -> tuple[Any, ...]:
        """The outputs of the markers."""
        return (self.values,) if self.indices is None else (self.values, self.indices)


@dataclass(frozen=True)
class Source:
    """A variable that the trace may have captured, and the variable's handle in the trace.

    >>> from autodist_core.capture.example import example_traced
    >>> source = example_traced().sources[0]
    >>> print(source.variable, source.handle.dtype.name)
    kernel : f32[3,1] resource
    """

    variable: Variable
    handle: Any


@dataclass(frozen=True)
class Counted:
    """How a value that a node adds counts: the position of the input, and the power of the replica's share.

    >>> Counted(1, tf.float32, power=-1)
    Counted(position=1, dtype=tf.float32, power=-1, times=1, repeated=False)
    """

    position: int
    dtype: tf.DType
    power: int
    """1: the value counts by the share of the batch. 2: by its square, where it is divided by the replica's number
    of examples. -1: by the inverse, where the values' weighted mean is taken. 0: by no share."""
    times: int = 1
    """What the value is multiplied by besides."""
    repeated: bool = False
    """Whether the rows of the value come so many times, instead of being multiplied."""


class Exchanged(NamedTuple):
    """The markers of a trace whose values become the same on all replicas.

    >>> Exchanged(sums=["marker"])
    Exchanged(sums=['marker'], gathers=(), maxima=())
    """

    sums: Sequence[Any] = ()
    """The tensors that are to be summed over the replicas."""
    gathers: Sequence[Any] = ()
    """The tensors that are to have the rows of all replicas."""
    maxima: Sequence[Any] = ()
    """The tensors whose largest values over the replicas are to be taken."""


class Components(NamedTuple):
    """The inputs that are components of ragged and sparse tensors.

    >>> Components(["values", "row splits"], ["values"], ["row splits"]).flat_values
    ['values']
    """

    parts: Sequence[Any] = ()
    """All of them."""
    flat_values: Sequence[Any] = ()
    """Those that are the tensors' values. The others say which values belong to which example."""
    row_splits: Sequence[Any] = ()
    """Those that say where each example's rows of a ragged tensor begin."""


@dataclass(frozen=True)
class Flags:
    """What the graph item says of the step as the front does.

    >>> Flags(jit_compile=True).handed_in
    False
    """

    jit_compile: bool = False
    """Whether XLA compiles each replica's compute, as far as it can."""
    explicit_seeds: bool = False
    """Whether a stateless draw takes the same numbers on every replica if no generator's state is in its seed."""
    draws_as_one: bool = False
    """Whether replicas draw the random numbers of one device, as far as they can (see `whole_draws.py`)."""
    handed_in: bool = False
    """Whether a tape began with a tensor, no number, that the step handed in."""


@dataclass(frozen=True)
class Traced:
    """One traced step: a flat function graph, and what the front knows about it.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> [placeholder.name for placeholder in traced.inputs], [output.name for output in traced.outputs]
    (['x:0'], ['loss:0', 'norm/Squeeze:0'])
    >>> [name for name in traced.updates if name.endswith("VariableOp")]
    ['ReadVariableOp', 'AssignVariableOp', 'AssignSubVariableOp']
    """

    graph: Any
    sources: Sequence[Source]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    examples: Any
    """The placeholder for this replica's number of examples."""
    total: Any
    """The placeholder for the number of examples of all replicas."""
    replica: Any = None
    """The placeholder for the number of this replica, if the step has one."""
    gradients: Sequence[Marked] = ()
    updates: Mapping[str, int] = field(default_factory=dict)
    """The occurrence of each operation of an update, by the operation's name."""
    of_replica: Collection[str] = ()
    """The operations that make results of the replica's own gradients, by name."""
    exchanged: Exchanged = field(default_factory=Exchanged)
    weighting: Sequence[Any] = ()
    """The tensors at which the tape weights a loss: every value computed from them counts the replica's share."""
    whole: Sequence[Any] = ()
    """The inputs that every replica gets whole, although they have axes."""
    components: Components = field(default_factory=Components)
    added_up: Sequence[Any] = ()
    """The tensors from which a tape differentiates losses that are sums: gradients computed from them are added up."""
    longest: Sequence[Any] = ()
    """The operations that pad or count to the longest of the examples: over the replicas, to that of the batch."""
    totals: Sequence[Any] = ()
    """The operations that make sums and means over the examples, which are to be those of the whole batch."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """The operations that add to a variable what counts by the replica's share, by name."""
    concat_outputs: bool = False
    """Whether outputs have one row for each example where nothing else is known of them, as in `predict`."""
    result_parts: Sequence[Any] = ()
    """The outputs that are components of ragged and sparse results."""
    own_losses: bool = False
    """Whether a gradient in a loss is the replica's own, as the loss is, and is differentiated so."""
    flags: Flags = field(default_factory=Flags)

    @property
    def markers(self) -> list[Any]:
        """The operations that mark gradients."""
        return [marker.op for gradient in self.gradients for marker in gradient.markers]

    @cached_property
    def captured(self) -> Mapping[str, Variable]:
        """The captured variables, by the names of the placeholders of their handles."""
        known = {id(source.handle): source.variable for source in self.sources}
        return {
            placeholder.op.name: known[id(value)] for value, placeholder in self.graph.captures if id(value) in known
        }

    @cached_property
    def handles(self) -> Mapping[str, str]:
        """The names of the captured variables, by those of the placeholders of their handles."""
        return {handle: variable.name for handle, variable in self.captured.items()}

    @cached_property
    def weighted(self) -> frozenset[str]:
        """The names of the operations whose values are added up over the replicas.

        These values count the replica's share of the batch, or are sums over the replica's examples. The zeros for a
        variable that the loss does not reach are not among them: they count as a mean.
        """
        return computed_from([*self.weighting, *self.added_up])


def name_of(tensor: Any) -> str:
    """Return a tensor's name as nodes list it among their inputs.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     name_of(tf.constant(1.0, name="x"))
    'x'
    """
    return str(tensor.name).removesuffix(":0")


def variable_of(name: str, variable: Any, kind: str, aggregation: str) -> Variable:
    """Return what a captured step says of a TensorFlow variable.

    >>> print(variable_of("kernel", tf.Variable([1.0]), "model", "none"))
    kernel : f32[1]
    >>> variable_of("layer/seed_generator_state", tf.Variable([1, 2]), "model", "none").kind
    'seed'
    """
    # The states of keras.random.SeedGenerator and of tf.random.Generator.
    is_seed = name.rpartition("/")[2].startswith(("seed_generator_state", "StateVar"))
    return Variable(
        name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name, trainable=False,
        aggregation=aggregation, kind="seed" if is_seed else kind,
    )


def unused(name: str, used: set[str]) -> str:
    """Return a name, with a number behind it if it is among those used; note that it is used now.

    >>> used = {"kernel"}
    >>> unused("kernel", used), unused("kernel", used)
    ('kernel_1', 'kernel_2')
    """
    candidate, count = name, 0
    while candidate in used:
        count += 1
        candidate = f"{name}_{count}"
    used.add(candidate)
    return candidate
