"""The tensors that a replica sends for one gradient, after compression.

A synchronizer and the shape and type of a gradient come in, and a `Wire` goes out. The plan's table counts its bytes,
and the compressor kernels build its tensors.
"""

from dataclasses import dataclass
from math import prod

from autodist_core.step.graph_item import Variable
from autodist_core.strategy.synchronizers import HALF_PRECISION, PSPlan, Synchronizer

PLAIN, HALF, FACTORS = "plain", "half", "factors"
_COMPRESSIBLE = ("float32", "float64")


@dataclass(frozen=True)
class Wire:
    """The tensors that a replica passes to collectives for one gradient.

    >>> Wire(HALF, "float16", ((7, 9),)).bytes
    126
    """

    form: str
    """`PLAIN`: the gradient as it is. `HALF`: the gradient in half precision. `FACTORS`: two factors of it."""
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    """One shape for each round of collectives."""
    feedback: bool = False
    """Whether the error of the compression is added to the gradient of the next step."""

    @property
    def bytes(self) -> int:
        """The bytes of the tensors that one replica passes to collectives."""
        return sum(Variable("sent", shape, self.dtype).byte_size for shape in self.shapes)


def wire(plan: Synchronizer, shape: tuple[int, ...], dtype: str) -> Wire:
    """Return what a replica sends for a dense gradient of this shape and type.

    Gradients of integers, of complex numbers and of 16 bits travel as they are, and so do empty gradients.
    PowerSGDCompressor also leaves a gradient as it is if the two factors together would not be smaller.

    >>> from autodist_core.strategy.synchronizers import AllReducePlan
    >>> wire(AllReducePlan(compressor="HorovodCompressor"), (7, 9), "float64")
    Wire(form='half', dtype='float16', shapes=((7, 9),), feedback=False)
    >>> wire(AllReducePlan(compressor="PowerSGDCompressor", power_sgd_rank=2), (7, 3, 3), "float32")
    Wire(form='factors', dtype='float32', shapes=((7, 2), (9, 2)), feedback=True)
    >>> wire(AllReducePlan(compressor="PowerSGDCompressor", power_sgd_rank=4), (7, 9), "float32")
    Wire(form='plain', dtype='float32', shapes=((7, 9),), feedback=False)
    """
    if dtype in _COMPRESSIBLE and 0 not in shape:
        if isinstance(plan, PSPlan):
            return Wire(HALF, plan.wire_dtype, (shape,)) if plan.wire_dtype else Wire(PLAIN, dtype, (shape,))
        if plan.compressor in HALF_PRECISION:
            return Wire(HALF, plan.wire_dtype, (shape,), plan.compressor.endswith("EF"))
        if plan.compressor == "PowerSGDCompressor" and len(shape) > 1:
            rows, columns, rank = shape[0], prod(shape[1:]), plan.power_sgd_rank
            if rank * (rows + columns) < rows * columns:
                return Wire(FACTORS, dtype, ((rows, rank), (columns, rank)), feedback=True)
    return Wire(PLAIN, dtype, (shape,))
