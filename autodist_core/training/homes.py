"""The variables of a model that a session on this machine computes on itself, and that have further copies.

In: the looks at these variables. Out: before each step, the names of those whose further copies are to follow, since
somebody may have changed the variable.

>>> from autodist_core.step.graph_item import Variable
>>> homes = Homes()
>>> homes.entries["w"] = Entry(Variable("w", (2,), "float32"), None)
>>> homes.may_change("w", steps=2)
>>> homes.due({"w"}), homes.due({"w"}), homes.due({"w"})
(['w'], ['w'], [])
"""

import threading
from collections.abc import Collection

from autodist_core.training.entries import Entry


class Homes:
    """The variables and, for some, before how many steps the further copies follow. The module has an example."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._steps: dict[str, int] = {}
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def may_change(self, name: str, steps: int = 1) -> None:
        """Let the further copies of a variable follow before this many steps, at least."""
        with self._lock:
            self._steps[name] = max(self._steps.get(name, 0), steps)

    def due(self, known: Collection[str]) -> list[str]:
        """The variables among those that the session knows whose copies follow before the next step."""
        if not self._steps:
            return []
        with self._lock:
            names = [name for name in self._steps if name in known]
            self._steps = {name: steps - (name in known) for name, steps in self._steps.items()}
            self._steps = {name: steps for name, steps in self._steps.items() if steps}
        return names

    def clear(self) -> None:
        """Forget who may have changed what."""
        self._steps = {}
