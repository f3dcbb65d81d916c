"""Errors: everything this package raises on purpose, for every stage of the flow.

The tree (beside each stands the built-in class that it also is, so that ``except ValueError`` keeps working)::

    AutodistError
    ├── ResourceSpecError   ValueError            the description of the machines is wrong
    ├── StrategyError       ValueError            a strategy, or the arguments of its builder, cannot be carried out
    ├── CaptureError        ValueError            the train step cannot be captured, or its description is inconsistent
    ├── NotYetError         NotImplementedError   valid, but this version does not run it
    ├── KernelError         RuntimeError          a kernel left the graph in a state that its check refuses
    ├── LaunchError         ConnectionError       a node cannot take part: not reached, not logged in to, not fit
    ├── SeamError           RuntimeError          the installed Keras or TensorFlow is not what this package builds on
    └── SessionError        RuntimeError          training was stopped by something outside the graph
        └── NodeLostError   ConnectionError       a node was lost in the middle of a run

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
    "NodeLostError",
    "NotYetError",
    "ResourceSpecError",
    "SeamError",
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


class SeamError(AutodistError, RuntimeError):
    """The installed Keras or TensorFlow lacks a name, or a behaviour, on which this package builds.

    ``problems`` holds every one that was found.

    >>> print(SeamError("Keras 3.16.0 has no A.b, on which c rests"))
    Keras 3.16.0 has no A.b, on which c rests. Install a supported version, or an autodist-keras that supports this one.
    """

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        advice = "Install a supported version, or an autodist-keras that supports this one."
        if len(problems) == 1:
            text = f"{problems[0]}. {advice}"
        else:
            found = "".join(f"\n  - {line}" for line in problems)
            text = f"{len(problems)} things on which autodist-keras builds are missing:{found}\n{advice}"
        super().__init__(text)


class LaunchError(AutodistError, ConnectionError):
    """A machine cannot take part: `host` says which, `reason` why; of several, `hosts` says which.

    >>> print(LaunchError("10.0.0.3", "port 22 is closed."))
    10.0.0.3: port 22 is closed.
    """

    def __init__(self, host: str, reason: str, hosts: Iterable[str] = ()) -> None:
        self.host, self.reason = host, reason
        self.hosts = tuple(hosts) or ((host,) if host else ())
        super().__init__(f"{host}: {reason}" if host else reason)


class SessionError(AutodistError, RuntimeError):
    """Training was stopped by something outside the graph: a host, a deadline, a file."""


class NodeLostError(SessionError, ConnectionError):
    """A node was lost in the middle of a run; `host` is its address.

    >>> print(NodeLostError("10.0.0.3", "its agent ended (killed by signal 9)").during("training step 12"))
    10.0.0.3 was lost during training step 12: its agent ended (killed by signal 9)
    """

    def __init__(self, host: str, why: str, doing: str = "", left: str = "") -> None:
        self.host, self.why, self.doing, self.left = host, why, doing, left
        during = f" during {doing}" if doing else ""
        super().__init__(f"{host} was lost{during}: {why}" + (f"\n{left[:1].upper()}{left[1:]}." if left else ""))

    def during(self, doing: str) -> NodeLostError:
        """The same, with what was being done."""
        return NodeLostError(self.host, self.why, doing, self.left)

    def leaving(self, left: str) -> NodeLostError:
        """The same, with what is left of the training."""
        return NodeLostError(self.host, self.why, self.doing, left)


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The sentence that ends a message about an unknown name; empty when nothing known is close.

    ``likeness`` is how close, from 0 to 1 for the same.

    >>> did_you_mean("PartitonedPS", ["PS", "PartitionedPS"])
    " Did you mean 'PartitionedPS'?"
    >>> did_you_mean("zebra", ["PS", "PartitionedPS"])
    ''
    """
    candidates = list(known)
    by_lower_case = {candidate.lower(): candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=likeness)
    return f" Did you mean '{by_lower_case[close[0]]}'?" if close else ""
