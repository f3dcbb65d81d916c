"""Kernel, and the runner that applies kernels in order.

In: a draft and kernels. Out: a `Change` for each kernel; the kernels have added nodes to the draft::

    Barriers: NoOp: 0 -> 3

A kernel is a small frozen value. Its fields are its options. `apply` adds nodes to a draft, the graph of one step for
all replicas. No kernel changes the captured step. The finished graph is checked as a whole (`Editor.graph_def`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodist_core.errors import AutodistError, KernelError
from autodist_core.kernel.draft import Draft


@dataclass(frozen=True)
class Kernel(ABC):
    """One step from a captured graph to a distributed one.

    >>> class Nothing(Kernel):
    ...     def apply(self, draft): ...
    >>> Nothing().name
    'Nothing'
    """

    @property
    def name(self) -> str:
        """The kernel's name in reports and errors."""
        return type(self).__name__

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Add this kernel's nodes to the draft."""


@dataclass(frozen=True)
class Change:
    """What one kernel did to the graph: for each type of operation, the count before and after.

    >>> print(Change("Barriers", (("NoOp", 0, 3),)))
    Barriers: NoOp: 0 -> 3
    """

    kernel: str
    ops: tuple[tuple[str, int, int], ...]

    @staticmethod
    def between(kernel: str, before: Mapping[str, int], after: Mapping[str, int]) -> "Change":
        """Return the change of a kernel, from the number of nodes of each type before and after it.

        >>> print(Change.between("Barriers", {"MatMul": 2}, {"MatMul": 2, "NoOp": 3}))
        Barriers: NoOp: 0 -> 3
        """
        ops = ((op, before.get(op, 0), after.get(op, 0)) for op in sorted(before.keys() | after.keys()))
        return Change(kernel, tuple(each for each in ops if each[1] != each[2]))

    def __str__(self) -> str:
        changes = ", ".join(f"{op}: {before} -> {after}" for op, before, after in self.ops)
        return f"{self.kernel}: {changes or 'no change'}"


def run(draft: Draft, kernels: Sequence[Kernel]) -> tuple[Change, ...]:
    """Apply kernels in order. An error says which kernels have already run.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> from autodist_core.kernel.passes.replicator import Replicator
    >>> draft = Draft.of(example_step(), example_placement(PS()))
    >>> (change,) = run(draft, [Replicator()])
    >>> [counts for counts in change.ops if counts[0] == "MatMul"]
    [('MatMul', 0, 4)]
    """
    changes: list[Change] = []
    before = draft.editor.histogram()
    for kernel in kernels:
        try:
            kernel.apply(draft)
        except (AutodistError, KeyError, ValueError) as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            if not isinstance(error, AutodistError):
                raise KernelError(f"kernel {kernel.name} failed: {error!r} (already run: {done}).") from error
            error.add_note(f"while running kernel {kernel.name} (already run: {done})")
            raise
        after = draft.editor.histogram()
        changes.append(Change.between(kernel.name, before, after))
        before = after
    return tuple(changes)
