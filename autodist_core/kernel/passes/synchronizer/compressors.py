"""Compressors: what each replica sends in place of a gradient, and how the sums become reduced gradients.

In: one gradient of all replicas (a Parcel). Out: the reduced gradient on each replica. A compressor is a generator. It
yields one tensor of each replica for every round of collectives, is sent the sums, and returns the reduced gradients::

    def _half(parcel):                       # without error feedback
        total = yield cast(parcel.local())   # half precision travels
        return cast_back(total)

`COMPRESSORS` has one such function for each form in which a gradient travels, and not for each compressor. A new
compressor needs:

1. A name: a value of the enum `Compressor` in `proto/synchronizers.proto`, and `make proto`. The names of
   `strategy/synchronizers.py` are read from this enum. That module also lists the compressors that send half precision,
   and has a field of `AllReducePlan` for each option.
2. A form: `wire` in `strategy/wire.py` returns the form, the type and the shapes that the compressor sends. The plan
   counts the bytes of these.
3. A function in this module, and an entry of `COMPRESSORS` with the form as its key, if the form is new.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.draft import Draft
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient, Variable
from autodist_core.strategy import wire
from autodist_core.strategy.synchronizers import AllReducePlan
from autodist_core.strategy.wire import Wire

Tensors = tuple[str, ...]
"""Names of tensors, one on each replica; empty where the tensor of another replica has its part."""
Rounds = Generator[Tensors, Tensors, Tensors]


@dataclass(frozen=True, eq=False)
class Parcel:
    """One dense gradient of all replicas, or its slice for one shard of the variable, to be summed.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="AllReduceSynchronizer")
    >>> gradient, plan = draft.step.item.gradients[0], AllReducePlan(compressor="HorovodCompressor")
    >>> parcel = Parcel(draft, gradient, draft.step.variables["kernel"], plan)
    >>> parcel.local(), parcel.wire.dtype
    (('weighted/replica0/0/kernel', 'weighted/replica1/0/kernel'), 'float16')
    """

    draft: Draft
    gradient: Gradient
    variable: Variable
    """The variable, or the shard of it."""
    plan: AllReducePlan

    @cached_property
    def wire(self) -> Wire:
        """The types and shapes that travel."""
        return wire.wire(self.plan, self.variable.shape, self.dtype.name)

    @property
    def label(self) -> str:
        """The beginning of the names of its nodes."""
        return f"sent/{self.gradient.occurrence}/{naming.safe(self.variable.name)}"

    @cached_property
    def dtype(self) -> tf.DType:
        """The type of the gradient."""
        return self.draft.type_of(self.gradient)

    @property
    def seed(self) -> str:
        """The seed of what it draws: the variable's position, since Keras numbers names on within a program."""
        trained = dict.fromkeys(gradient.variable for gradient in self.draft.step.item.gradients)
        return f"gradient {[*trained].index(self.gradient.variable)}"

    @property
    def ready(self) -> int:
        """The position in the captured graph of the node that computes the gradient."""
        step = self.draft.step
        marker = step.nodes[naming.node_of(self.gradient.values)]
        return step.position[naming.node_of(marker.input[0])]

    def local(self) -> Tensors:
        """Return each replica's own gradient; zeros for an idle replica.

        A gradient that several replicas multiplied at once is the first one's. The others have an empty name.
        """
        draft = self.draft
        return tuple(
            self._own(replica.index) if replica.index in draft.active else self._nothing(replica.index)
            for replica in draft.placement.replicas
        )

    def _own(self, index: int) -> str:
        draft, replica = self.draft, self.draft.placement.replicas[index]
        key = *self.gradient.key, index
        if key not in draft.local:
            return ""
        values = draft.local[key].values
        if self.variable.name == self.gradient.variable:
            return values
        begin = [self.variable.offset if axis == self.variable.axis else 0 for axis in range(len(self.variable.shape))]
        return draft.editor.trace(
            f"{self.label}/{replica.prefix}/own", lambda values: tf.slice(values, begin, self.variable.shape),
            {values: tf.TensorSpec(None, self.dtype)}, replica.device,
        )[0]

    def on_each(
        self, name: str, function: Callable[..., tf.Tensor], inputs: Mapping[Tensors, tf.TensorSpec]
    ) -> Tensors:
        """Add a small function on every replica; return its results."""
        return tuple(
            self.draft.editor.trace(
                f"{self.label}/{replica.prefix}/{name}", function,
                {tensors[replica.index]: spec for tensors, spec in inputs.items()}, replica.device,
            )[0]
            for replica in self.draft.placement.replicas
        )

    def recall(self, what: str, shape: tuple[int, ...], seed: str = "") -> Tensors:
        """Return the tensor that each replica kept from the step before."""
        draft, occurrence = self.draft, self.gradient.occurrence
        return tuple(
            draft.editor.add(
                "ReadVariableOp", f"kept/{occurrence}/read/{naming.safe(added.name)}", [draft.kept(added)],
                added.device, 2 * occurrence, dtype=self.dtype,
            )
            for added in self._added(what, shape, seed)
        )

    def remember(self, what: str, shape: tuple[int, ...], values: Tensors, seed: str = "") -> None:
        """Let each replica keep a tensor for the next step."""
        for variable, value in zip(self._added(what, shape, seed), values, strict=True):
            self.draft.new_values.append((variable, value, self.gradient.occurrence))

    def _added(self, what: str, shape: tuple[int, ...], seed: str) -> list[AddedVariable]:
        return [
            AddedVariable(
                f"compressor/{what}/{self.variable.name}@{replica.prefix}", replica.device, self.dtype.name, shape,
                seed,
            )
            for replica in self.draft.placement.replicas
        ]

    def _nothing(self, index: int) -> str:
        replica = self.draft.placement.replicas[index]
        name = f"{self.label}/{replica.prefix}/nothing"
        zero = tf.zeros((), self.dtype).numpy()
        return self.draft.editor.trace(name, lambda: tf.fill(self.variable.shape, zero), {}, replica.device)[0]


def _plain(parcel: Parcel) -> Rounds:
    return (yield parcel.local())


def _half(parcel: Parcel) -> Rounds:
    """Send half precision. With error feedback, the rounding error of the cast is added to the next gradient."""
    full = tf.TensorSpec(parcel.variable.shape, parcel.dtype)
    half = tf.TensorSpec(parcel.variable.shape, tf.as_dtype(parcel.wire.dtype))
    error = parcel.recall("error", parcel.variable.shape) if parcel.wire.feedback else None
    wanted = parcel.local()
    if error:
        wanted = parcel.on_each("wanted", tf.add, {wanted: full, error: full})
    sent = parcel.on_each("sent", lambda value: tf.cast(value, half.dtype), {wanted: full})
    total = yield sent
    if error:
        left = parcel.on_each("left", _left_of_cast, {total: half, error: full, wanted: full, sent: half})
        parcel.remember("error", parcel.variable.shape, left)
    return parcel.on_each("reduced", lambda value: tf.cast(value, full.dtype), {total: half})


def _left_of_cast(total: tf.Tensor, error: tf.Tensor, wanted: tf.Tensor, sent: tf.Tensor) -> tf.Tensor:
    return _unless_overflown(total, error, wanted - tf.cast(sent, wanted.dtype))


def _factors(parcel: Parcel) -> Rounds:
    """Send a projection of the gradient on a few directions, by power iteration from the directions of the last step.

    M is the sum over the replicas as a matrix, and Q has the directions that were kept. P is M Q with orthonormal
    columns. The reduced gradient is P (P' M). Each factor is linear in the replicas' gradients, so the sums of the
    factors are enough. The difference between a replica's gradient and its projection is added to the next gradient.
    """
    (rows, rank), (columns, _) = parcel.wire.shapes
    full, matrix = tf.TensorSpec(parcel.variable.shape, parcel.dtype), tf.TensorSpec((rows, columns), parcel.dtype)
    tall, wide = tf.TensorSpec((rows, rank), parcel.dtype), tf.TensorSpec((columns, rank), parcel.dtype)
    error = parcel.recall("error", parcel.variable.shape)
    directions = parcel.recall("directions", (columns, rank), seed=parcel.seed)
    part = parcel.on_each(
        "part", lambda local, error: tf.reshape(local + error, (rows, columns)), {parcel.local(): full, error: full}
    )
    total = yield parcel.on_each("left", tf.matmul, {part: matrix, directions: wide})
    basis = parcel.on_each("basis", _orthonormal, {total: tall})
    right = parcel.on_each("right", lambda part, basis: tf.matmul(part, basis, transpose_a=True), {
        part: matrix, basis: tall,
    })  # fmt: skip
    total = yield right
    parcel.remember("directions", (columns, rank), parcel.on_each(
        "directions", lambda total, before: _unless_overflown(total, before, _orthonormal(total)),
        {total: wide, directions: wide},
    ), seed=parcel.seed)  # fmt: skip
    parcel.remember("error", parcel.variable.shape, parcel.on_each(
        "lost", _left_of_projection, {total: wide, error: full, part: matrix, basis: tall, right: wide}
    ))  # fmt: skip
    return parcel.on_each(
        "reduced", lambda basis, total: tf.reshape(tf.matmul(basis, total, transpose_b=True), parcel.variable.shape),
        {basis: tall, total: wide},
    )


def _left_of_projection(
    total: tf.Tensor, error: tf.Tensor, part: tf.Tensor, basis: tf.Tensor, right: tf.Tensor
) -> tf.Tensor:
    lost = part - tf.matmul(basis, right, transpose_b=True)
    return _unless_overflown(total, error, tf.reshape(lost, error.shape))


def _orthonormal(matrix: tf.Tensor) -> tf.Tensor:
    """Return orthonormal columns that span the columns of a matrix, with others if these are dependent or zero.

    The decomposition uses reflections, which divide by no column's length. Equal matrices give equal bits, so all
    replicas have equal columns.
    """
    return tf.linalg.qr(matrix, full_matrices=False).q


def _unless_overflown(total: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Return the new value, or the old value if the sum is not finite: loss scaling skips such a step everywhere.

    `tf.where` would copy the value; a branch hands it on.
    """
    finite = tf.reduce_all(tf.math.is_finite(total))
    kept = tf.raw_ops.Switch(data=before, pred=finite).output_false
    return tf.raw_ops.Merge(inputs=[kept, tf.raw_ops.Switch(data=after, pred=finite).output_true]).output


COMPRESSORS: Mapping[str, Callable[[Parcel], Rounds]] = {wire.PLAIN: _plain, wire.HALF: _half, wire.FACTORS: _factors}
"""The compressor of each form in which a gradient travels."""
