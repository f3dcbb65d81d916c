"""Errors: everything this package raises on purpose, for every stage of the flow.

The tree (beside each stands the built-in class that it also is, so that ``except ValueError`` keeps working)::

    AutodistError
    ├── ResourceSpecError   ValueError            the description of the machines is wrong
    ├── StrategyError       ValueError            a strategy, or the arguments of its builder, cannot be carried out
    ├── CaptureError        ValueError            the train step cannot be captured, or its description is inconsistent
    ├── NotYetError         NotImplementedError   valid, but this version does not run it
    ├── KernelError         RuntimeError          a kernel left the graph in a state that its check refuses
    ├── SessionError        RuntimeError          training was stopped by something outside the graph
    └── LaunchError         ConnectionError       a machine cannot be reached, or a program cannot be started there

A message says whose fault it is, what was received, what is allowed, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AutodistError",
    "CaptureError",
    "KernelError",
    "LaunchError",
    "NotYetError",
    "ResourceSpecError",
    "SessionError",
    "StrategyError",
    "did_you_mean",
]


class AutodistError(Exception):
    """The root of the tree: catch it to catch whatever this package raises on purpose."""


class ResourceSpecError(AutodistError, ValueError):
    """The description of the machines is wrong; the message names the file, the node, the key and the remedy."""


class StrategyError(AutodistError, ValueError):
    """A strategy cannot be carried out; ``violations`` holds every reason, not the first one only.

    >>> StrategyError("first", "second").violations
    ('first', 'second')
    >>> print(StrategyError("first", "second", subject="strategy 3f9c21"))
    strategy 3f9c21 has 2 problems:
      - first
      - second
    """

    def __init__(self, *violations: str, subject: str = "the strategy") -> None:
        self.violations: tuple[str, ...] = violations
        self.subject = subject
        if len(violations) == 1:
            text = violations[0]
        else:
            text = f"{subject} has {len(violations)} problems:" + "".join(f"\n  - {line}" for line in violations)
        super().__init__(text)


class CaptureError(AutodistError, ValueError):
    """A train step cannot be captured, or the description of a captured one contradicts itself."""


class NotYetError(AutodistError, NotImplementedError):
    """What was asked for is valid, and this version does not run it."""


class KernelError(AutodistError, RuntimeError):
    """A kernel's own check refuses what the kernel produced."""


class SessionError(AutodistError, RuntimeError):
    """Training was stopped by something outside the graph: a host, a deadline, a file."""


class LaunchError(AutodistError, ConnectionError):
    """A machine cannot be reached, or a program cannot be started there; ``host`` says which, ``reason`` why.

    >>> print(LaunchError("10.0.0.3", "port 22 is closed."))
    10.0.0.3: port 22 is closed.
    """

    def __init__(self, host: str, reason: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{host}: {reason}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The sentence that ends a message about an unknown name; empty when nothing known is close.

    >>> did_you_mean("PartitonedPS", ["PS", "PartitionedPS"])
    " Did you mean 'PartitionedPS'?"
    >>> did_you_mean("zebra", ["PS", "PartitionedPS"])
    ''
    """
    candidates = list(known)
    by_lower_case = {candidate.lower(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return f" Did you mean '{by_lower_case[close[0]]}'?" if close else ""
