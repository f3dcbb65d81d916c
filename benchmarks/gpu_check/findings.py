"""What a part of the check finds: lines that its process prints, and the parent reads and keeps.

A finding has a verdict: it passed, it failed, or it did not run. So a part that is killed has said what it found
before.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MARK = "finding: "
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"


class NotRun(Exception):
    """Why something cannot be checked here."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked or measured.

    >>> Finding.read(str(Finding("right", "dense", "passed", {"error": 1e-16}))).figures
    {'error': 1e-16}
    """

    part: str
    name: str
    verdict: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    """Why it failed, or was not run."""

    @classmethod
    def read(cls, line: str) -> Finding | None:
        """The finding of a line; None if the line has none."""
        return cls(**json.loads(line.removeprefix(MARK))) if line.startswith(MARK) else None

    def __str__(self) -> str:
        return MARK + json.dumps(asdict(self))

    @property
    def row(self) -> str:
        """A line of the table."""
        shown = [f"{name} {_short(value)}" for name, value in self.figures.items()]
        said = self.said.strip().splitlines()
        return f"{self.part:8} {self.name:44} {self.verdict:8} {', '.join([*shown, *said[-1:]])[:240]}"


@dataclass(frozen=True)
class Findings:
    """The findings of one part, printed as they come.

    >>> Findings("right").check("dense", lambda: {"error": 0.0})
    finding: {"part": "right", "name": "dense", "verdict": "passed", "figures": {"error": 0.0}, "said": ""}
    """

    part: str

    def check(self, name: str, run: Callable[[], Mapping[str, Any]]) -> None:
        """Run a check, which returns its figures. An AssertionError, or any other error, makes it fail."""
        try:
            found = Finding(self.part, name, PASSED, run())
        except NotRun as error:
            found = Finding(self.part, name, NOT_RUN, said=str(error))
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            figures = error.args[1] if len(error.args) == 2 and isinstance(error.args[1], dict) else {}
            found = Finding(self.part, name, FAILED, figures, "\n".join(lines[-12:])[-2000:])
        print(found, flush=True)


def require(holds: bool, said: str, figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures. If the condition does not hold, raise with them.

    >>> require(True, "the error is too large", {"error": 0.0})
    {'error': 0.0}
    """
    if not holds:
        raise AssertionError(said, dict(figures))
    return figures


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
