"""Order between reads and writes of each variable, rebuilt.

The captured control edges hold for the captured graph only: once compute and update are cut apart, nothing orders a
read of a mirror before the write of its next value. Every node that touches a variable carries the time at which the
captured graph touches it; here each read waits for the last write before it, and each write for the reads since.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.errors import KernelError
from autodist_core.kernel import editor
from autodist_core.kernel.captured import accesses
from autodist_core.kernel.kernel import Draft, Kernel


@dataclass(frozen=True)
class Order(Kernel):
    """Control edges for every variable, and one node that stands for the whole step."""

    def apply(self, draft: Draft) -> None:
        """Add the edges."""
        touches: dict[str, list[tuple[int, bool, str]]] = {}
        handles = {node.name: node.name for node in draft.editor if node.op == "VarHandleOp"}
        for node in draft.editor:
            for touch in accesses(node, handles.get):
                if editor.ORDER not in node.attr:
                    raise KernelError(f"{node.name} ({node.op}) touches {touch.variable} at no stated time.")
                touches.setdefault(touch.variable, []).append((node.attr[editor.ORDER].i, touch.writes, node.name))
        for variable, found in touches.items():
            _order(draft, variable, found)
        draft.editor.add("NoOp", "step", [f"^{name}" for name in dict.fromkeys(draft.targets)])


def _order(draft: Draft, variable: str, found: list[tuple[int, bool, str]]) -> None:
    last_write: tuple[int, str] | None = None
    reads: list[str] = []
    for time, writes, name in sorted(found):
        if not writes:
            if last_write:
                draft.editor.control(name, last_write[1])
            reads.append(name)
            continue
        if last_write and last_write[0] == time:
            raise KernelError(f"{last_write[1]} and {name} both write {variable} at one time.")
        draft.editor.control(name, *reads, *([last_write[1]] if last_write else []))
        last_write, reads = (time, name), []
