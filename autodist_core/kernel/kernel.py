"""Kernel, and the runner that applies kernels in order.

In: a draft and kernels. Out: a `Change` for each kernel; the kernels have added nodes to the draft::

    Barriers: NoOp: 0 -> 3

A kernel is a small frozen value. Its fields are its options. `apply` adds nodes to a draft, the graph of one step for
all replicas. No kernel changes the captured step. A kernel declares the fields of the draft that it needs and the
fields that it provides, except `targets`, to which every kernel may add. The runner raises an error if the order is
wrong, and gives a kernel a view of the draft that has the declared fields only. The finished graph is checked as a
whole (`Editor.graph_def`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

from autodist_core.errors import AutodistError, KernelError
from autodist_core.kernel.draft import FILLED, Draft


@dataclass(frozen=True)
class Kernel(ABC):
    """One step from a captured graph to a distributed one.

    >>> class Nothing(Kernel):
    ...     def apply(self, draft): ...
    >>> Nothing().name
    'Nothing'
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The fields of the draft that an earlier kernel must have provided."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The fields that an earlier kernel may have provided, and that no later kernel may provide."""
    provides: ClassVar[tuple[str, ...]] = ()
    """The fields to which `apply` may add."""

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
    require_order(kernels, draft.provided)
    changes: list[Change] = []
    before = draft.editor.histogram()
    for kernel in kernels:
        try:
            kernel.apply(cast(Draft, _View(draft, kernel)))
        except (AutodistError, KeyError, ValueError) as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            if not isinstance(error, AutodistError):
                raise KernelError(f"kernel {kernel.name} failed: {error!r} (already run: {done}).") from error
            error.add_note(f"while running kernel {kernel.name} (already run: {done})")
            raise
        draft.provided.update(kernel.provides)
        after = draft.editor.histogram()
        changes.append(Change.between(kernel.name, before, after))
        before = after
    return tuple(changes)


class _View:
    """A draft as one kernel sees it: what it needs can be read, what it provides can be changed, no other field."""

    def __init__(self, draft: Draft, kernel: Kernel) -> None:
        given = {name: value for name, value in vars(draft).items() if name not in FILLED}
        seen = {name: getattr(draft, name) for name in {*kernel.needs, *kernel.reads} - {*kernel.provides}}
        frozen = {name: _FROZEN[type(each)](each) if type(each) in _FROZEN else each for name, each in seen.items()}
        self.__dict__.update(given, _draft=draft, _kernel=kernel, **frozen)

    def __getattr__(self, name: str) -> Any:
        self._require(name, name not in FILLED)
        return getattr(self._draft, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._require(name, name == "targets")
        setattr(self._draft, name, value)

    def _require(self, name: str, free: bool) -> None:
        if not free and name not in self._kernel.provides:
            raise KernelError(f"kernel {self._kernel.name} does not declare how it uses draft.{name}.")


_FROZEN: dict[type, Any] = {dict: MappingProxyType, set: frozenset, list: tuple}


def require_order(kernels: Sequence[Kernel], provided: Set[str] = frozenset()) -> None:
    """Raise a `KernelError` that lists every kernel which needs a field before an earlier kernel has provided it.

    `provided` names the fields that kernels of an earlier run have provided.

    >>> class Reduce(Kernel):
    ...     needs, provides = ("local",), ("reduced",)
    ...     def apply(self, draft): ...
    >>> require_order([Reduce()])
    Traceback (most recent call last):
    autodist_core.errors.KernelError: kernels in the wrong order: Reduce needs draft.local, which no earlier kernel
        provides.
    """
    wrong = []
    for position, kernel in enumerate(kernels):
        for name in kernel.needs:
            if name not in provided and not any(name in earlier.provides for earlier in kernels[:position]):
                wrong.append(f"{kernel.name} needs draft.{name}, which no earlier kernel provides")
        for later in kernels[position + 1 :]:
            wrong += [
                f"{kernel.name} reads draft.{name}, which the later {later.name} provides"
                for name in (*kernel.needs, *kernel.reads) if name in later.provides
            ]
    if wrong:
        raise KernelError(f"kernels in the wrong order: {'; '.join(wrong)}.")
