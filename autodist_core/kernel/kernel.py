"""What a kernel is, and the runner that applies kernels in order and checks the graph after each.

A kernel is a small frozen value whose fields are its options. `apply` adds to a draft: the graph of one step for all
replicas, built next to the captured step, which no kernel changes. A kernel declares the fields of the draft that it
needs and those that it provides; the runner holds it to both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from autodist_core.errors import AutodistError, KernelError
from autodist_core.kernel.draft import Draft

FIELDS = (
    "compute", "local", "initializers", "reduced", "collectives", "kept", "remembered", "barriers", "returned",
    "outputs", "steps",
)
"""The fields of a draft that kernels provide for each other. `targets` is not one: every kernel may add to it."""


class Kernel(ABC):
    """One step from a captured graph to a distributed one."""

    needs: ClassVar[tuple[str, ...]] = ()
    """The fields of the draft that an earlier kernel must have provided."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields that an earlier kernel may have provided; no later kernel may."""
    provides: ClassVar[tuple[str, ...]] = ()
    """The fields to which `apply` may add."""

    @property
    def name(self) -> str:
        """What the kernel is called in reports and errors."""
        return type(self).__name__

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Add this kernel's nodes to the draft."""


@dataclass(frozen=True)
class Change:
    """What one kernel did to the graph: counts of ops before and after."""

    kernel: str
    ops: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        changes = ", ".join(f"{op}: {before} -> {after}" for op, before, after in self.ops)
        return f"{self.kernel}: {changes or 'no change'}"


def run(draft: Draft, kernels: Sequence[Kernel]) -> tuple[Change, ...]:
    """Apply kernels in order; after each the graph is checked. An error says which kernels had already run."""
    require_order(kernels, draft.provided)
    changes: list[Change] = []
    for kernel in kernels:
        before, fields = draft.editor.histogram(), _sizes(draft)
        try:
            kernel.apply(draft)
            draft.editor.check()
            _require_declared(kernel, fields, _sizes(draft))
        except AutodistError as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            error.add_note(f"while running kernel {kernel.name} (already run: {done})")
            raise
        except (KeyError, ValueError) as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            raise KernelError(f"kernel {kernel.name} failed: {error!r} (already run: {done}).") from error
        draft.provided.update(kernel.provides)
        after = draft.editor.histogram()
        ops = [(op, before.get(op, 0), count) for op, count in sorted(after.items()) if before.get(op, 0) != count]
        changes.append(Change(kernel.name, tuple(ops)))
    return tuple(changes)


def require_order(kernels: Sequence[Kernel], provided: Set[str] = frozenset()) -> None:
    """Raise a KernelError that lists every kernel which stands before one that provides what it needs.

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


def _sizes(draft: Draft) -> dict[str, int]:
    found: dict[str, Any] = {name: getattr(draft, name) for name in FIELDS}
    return {name: value if isinstance(value, int) else len(value) for name, value in found.items()}


def _require_declared(kernel: Kernel, before: dict[str, int], after: dict[str, int]) -> None:
    undeclared = [name for name in FIELDS if before[name] != after[name] and name not in kernel.provides]
    if undeclared:
        fields = ", ".join(f"draft.{name}" for name in undeclared)
        raise KernelError(f"kernel {kernel.name} filled {fields}, which it does not declare in `provides`.")
