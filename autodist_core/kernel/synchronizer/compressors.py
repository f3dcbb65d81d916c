"""Compressors: what each replica sends in place of a gradient, and what is made of the sums.

A compressor is a generator over all replicas at once. It yields one tensor of each replica for every round of
collectives, is sent their sums, and returns the reduced gradient on each replica.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from autodist_core.graph_item import Gradient
from autodist_core.kernel import editor
from autodist_core.kernel.kernel import Draft, gradient_type
from autodist_core.strategy import wire
from autodist_core.strategy.wire import Wire

Tensors = tuple[str, ...]
"""Names of tensors, one on each replica."""
Rounds = Generator[Tensors, Tensors, Tensors]


@dataclass(frozen=True, eq=False)
class Parcel:
    """One dense gradient of all replicas, to be summed."""

    draft: Draft
    gradient: Gradient
    wire: Wire

    @property
    def label(self) -> str:
        """What the names of its nodes begin with."""
        return f"sent/{self.gradient.occurrence}/{editor.safe(self.gradient.variable)}"

    @cached_property
    def dtype(self) -> tf.DType:
        """The type of the gradient."""
        return gradient_type(self.draft.captured, self.gradient)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the gradient."""
        return self.draft.captured.variables[self.gradient.variable].shape

    @property
    def ready(self) -> int:
        """When the captured graph has computed the gradient: the place of what the marker marks."""
        captured = self.draft.captured
        marker = captured.nodes[editor.node_of(self.gradient.values)]
        return captured.index[editor.node_of(marker.input[0])]

    def local(self) -> Tensors:
        """Each replica's own gradient; zeros where it has no examples."""
        draft, key = self.draft, (self.gradient.variable, self.gradient.occurrence)
        return tuple(
            draft.local[(*key, replica.index)].values if replica.index < draft.active else self._nothing(replica.index)
            for replica in draft.placement.replicas
        )

    def _nothing(self, index: int) -> str:
        replica = self.draft.placement.replicas[index]
        name, add = f"{self.label}/{replica.prefix}/nothing", self.draft.editor
        dims = add.constant(f"{name}/shape", list(self.shape), tf.int32, replica.device)
        zero = add.constant(f"{name}/zero", 0, self.dtype, replica.device)
        return add.add("Fill", name, [dims, zero], replica.device, T=self.dtype, index_type=tf.int32)


def _plain(parcel: Parcel) -> Rounds:
    return (yield parcel.local())


COMPRESSORS: Mapping[str, Callable[[Parcel], Rounds]] = {wire.PLAIN: _plain}
"""What is done for each form in which a gradient travels."""
