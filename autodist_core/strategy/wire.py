"""What travels of a gradient: the one answer that both the plan's table and the kernels use."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autodist_core.step.graph_item import Variable
from autodist_core.strategy.synchronizers import HALF_PRECISION, AllReducePlan

__all__ = ["FACTORS", "HALF", "PLAIN", "Wire", "wire"]

PLAIN, HALF, FACTORS = "plain", "half", "factors"
_COMPRESSIBLE = ("float32", "float64")


@dataclass(frozen=True)
class Wire:
    """The tensors that a replica puts into collectives in place of one gradient."""

    form: str
    """As it is, in half precision, or as two factors."""
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    """One shape for each round of collectives."""
    feedback: bool = False
    """Whether what is lost is added to the next step's gradient."""

    @property
    def bytes(self) -> int:
        """What one replica sends into the collectives."""
        return sum(Variable("sent", shape, self.dtype).byte_size for shape in self.shapes)


def wire(plan: AllReducePlan, shape: tuple[int, ...], dtype: str) -> Wire:
    """How a dense gradient of this shape and type travels.

    Integers, complex numbers, what has 16 bits already and what is empty travel as they are; so does, with
    PowerSGDCompressor, what its factors would not make smaller.

    >>> wire(AllReducePlan(compressor="HorovodCompressor"), (7, 9), "float64")
    Wire(form='half', dtype='float16', shapes=((7, 9),), feedback=False)
    >>> wire(AllReducePlan(compressor="PowerSGDCompressor", power_sgd_rank=2), (7, 3, 3), "float32")
    Wire(form='factors', dtype='float32', shapes=((7, 2), (9, 2)), feedback=True)
    >>> wire(AllReducePlan(compressor="PowerSGDCompressor", power_sgd_rank=4), (7, 9), "float32")
    Wire(form='plain', dtype='float32', shapes=((7, 9),), feedback=False)
    """
    if dtype in _COMPRESSIBLE and 0 not in shape:
        if plan.compressor in HALF_PRECISION:
            return Wire(HALF, plan.wire_dtype, (shape,), plan.compressor.endswith("EF"))
        if plan.compressor == "PowerSGDCompressor" and len(shape) > 1:
            rows, columns, rank = shape[0], prod(shape[1:]), plan.power_sgd_rank
            if rank * (rows + columns) < rows * columns:
                return Wire(FACTORS, dtype, ((rows, rank), (columns, rank)), feedback=True)
    return Wire(PLAIN, dtype, (shape,))
