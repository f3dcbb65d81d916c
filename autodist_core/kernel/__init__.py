"""Kernels: from a captured step of one device to one step of all replicas.

In: a captured step, and a placement (`place`). Out: a `DistributedGraph` (`build`). For two replicas with one memory::

    from    loss, gradient, update                                          one device
    to      replica0/loss, replica0/gradient, replica1/loss, replica1/gradient,
            reduced/memory/0/kernel, update/memory/...                      all replicas

`place` decides which device holds which copy of each variable. `build` runs the kernels in order.
"""

from autodist_core.kernel.analysis.alike_writes import mixed_results, with_alike_updates
from autodist_core.kernel.analysis.compilable import compilable
from autodist_core.kernel.analysis.factored import Factors, bytes_of_example, factored, factors
from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.analysis.seeds import drawn_by_replicas, drawn_by_update, drawn_explicitly
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.drawn import Compared, drawn, iterator_types, next_of, sample_of
from autodist_core.kernel.kernel import Kernel, run
from autodist_core.kernel.passes.outputs import joining
from autodist_core.kernel.pipeline import PIPELINE, DistributedGraph, build, factor_limits
from autodist_core.kernel.placement.arrangement import arrange
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.kernel.placement.placement import Placement
from autodist_core.kernel.placement.placing import inference, place
from autodist_core.kernel.refuse import examine
from autodist_core.kernel.time_parts import PARTS, Part, part_of

__all__ = [
    "PARTS", "PIPELINE", "Compared", "DistributedGraph", "Draft", "Factors", "Kernel", "Part", "Placement", "Tasks",
    "arrange", "build", "bytes_of_example", "compilable", "drawn", "drawn_by_replicas", "drawn_by_update",
    "drawn_explicitly", "examine", "factor_limits", "factored", "factors", "inference", "iterator_types", "joining",
    "mixed_results", "next_of", "part_of", "place", "run", "sample_of", "slots", "with_alike_updates",
]  # fmt: skip
