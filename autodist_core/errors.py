"""Errors: the exceptions that this package raises on purpose, in every stage of the flow.

The tree names, beside each class, the built-in class that it is too, so that ``except ValueError`` catches it::

    AutodistError
    ├── ResourceSpecError   ValueError            the description of the machines is wrong
    ├── StrategyError       ValueError            a strategy, or an option of its builder, cannot be carried out
    ├── CaptureError        ValueError            the train step cannot be captured, or its description is inconsistent
    ├── NotYetError         NotImplementedError   the request is valid, but this version does not run it
    ├── KernelError         RuntimeError          a kernel left the graph in a state that its check refuses
    ├── LaunchError         ConnectionError       a node cannot take part: no connection, no login, or a wrong version
    ├── SeamError           RuntimeError          the installed Keras or TensorFlow is not what this package builds on
    └── SessionError        RuntimeError          something outside the graph stopped the training
        └── NodeLostError   ConnectionError       a node was lost in the middle of a run

A message says which object is at fault, what was received, what is allowed, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

__all__ = [
    "REFUSED", "AutodistError", "CaptureError", "KernelError", "LaunchError", "NodeLostError", "NotYetError",
    "Refusals", "ResourceSpecError", "SeamError", "SessionError", "StrategyError", "amount", "did_you_mean",
    "nearest",
]  # fmt: skip


class AutodistError(Exception):
    """The root of the tree. ``except AutodistError`` catches every exception that this package raises on purpose.

    >>> try:
    ...     raise ResourceSpecError("cluster.yml: 'nodes' is empty.")
    ... except AutodistError as error:
    ...     print(error)
    cluster.yml: 'nodes' is empty.
    """

    reasons: tuple[AutodistError, ...] = ()
    """The errors that this one lists, if it lists several."""
    ag_pass_through = True
    """TensorFlow lets an error with this attribute out of a traced function as it is, and not inside a StagingError."""


class ResourceSpecError(AutodistError, ValueError):
    """The description of the machines is wrong. The message names the file, the node, the key and the remedy.

    >>> from autodist_core import ResourceSpec
    >>> ResourceSpec({"nodes": []})
    Traceback (most recent call last):
    autodist_core.errors.ResourceSpecError: ...
    """


class StrategyError(AutodistError, ValueError):
    """A strategy cannot be carried out. ``violations`` holds every reason.

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
    """A train step cannot be captured, or the description of a captured step contradicts itself.

    >>> from autodist_core import Variable
    >>> Variable("w", (-1, 2), "float32")
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: variable 'w': shape (-1, 2) has a negative size; variables have static shapes.
    """


class NotYetError(AutodistError, NotImplementedError):
    """The request is valid, but this version of the package does not run it.

    >>> issubclass(NotYetError, NotImplementedError)
    True
    """


class KernelError(AutodistError, RuntimeError):
    """A kernel's own check refuses the graph that the kernel produced.

    >>> issubclass(KernelError, RuntimeError)
    True
    """


class SeamError(AutodistError, RuntimeError):
    """The installed Keras or TensorFlow lacks a name, or a behaviour, on which this package builds.

    ``problems`` lists every missing name and behaviour.

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
    """A machine cannot take part. `host` is its address and `reason` the reason. `hosts` names all of several machines.

    >>> print(LaunchError("10.0.0.3", "port 22 is closed."))
    10.0.0.3: port 22 is closed.
    """

    def __init__(self, host: str, reason: str, hosts: Iterable[str] = ()) -> None:
        self.host, self.reason = host, reason
        self.hosts = tuple(hosts) or ((host,) if host else ())
        super().__init__(f"{host}: {reason}" if host else reason)


class SessionError(AutodistError, RuntimeError):
    """Something outside the graph stopped the training: a host, a deadline or a file.

    >>> issubclass(NodeLostError, SessionError)
    True
    """


class NodeLostError(SessionError, ConnectionError):
    """A node was lost in the middle of a run.

    `host` is the address of the node, `why` the reason, `doing` the work during which it was lost, and `left` says in
    what state the training is now.

    >>> lost = NodeLostError("10.0.0.3", "its agent ended (killed by signal 9)").during("training step 12")
    >>> print(lost.leaving("the model holds the state after step 11"))
    10.0.0.3 was lost during training step 12: its agent ended (killed by signal 9)
    The model holds the state after step 11.
    """

    def __init__(self, host: str, why: str, doing: str = "", left: str = "") -> None:
        self.host, self.why, self.doing, self.left = host, why, doing, left
        during = f" during {doing}" if doing else ""
        super().__init__(f"{host} was lost{during}: {why}" + (f"\n{left[:1].upper()}{left[1:]}." if left else ""))

    def during(self, doing: str) -> NodeLostError:
        """Return the same error with the work during which the node was lost."""
        return NodeLostError(self.host, self.why, doing, self.left)

    def leaving(self, left: str) -> NodeLostError:
        """Return the same error with the state in which the training is now."""
        return NodeLostError(self.host, self.why, self.doing, left)


REFUSED = "this training step cannot be distributed: "
"""The words with which a list of reasons begins. A single reason may begin with them; in the list it has them not."""


class Refusals:
    """Collects the reasons why one training step is refused, and raises them together.

    A single reason is raised as it is. Several reasons become one error, whose message lists them.

    >>> refusals = Refusals()
    >>> refusals.require_none()
    >>> refusals.add(CaptureError("'w' gets two gradients."), NotYetError("'v' is drawn twice."))
    >>> refusals.require_none()
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: this training step cannot be distributed: it has 2 problems:
      - 'w' gets two gradients.
      - 'v' is drawn twice.
    """

    MOST = 20
    """How many reasons a list names."""

    def __init__(self) -> None:
        self._found: dict[str, AutodistError] = {}

    def __bool__(self) -> bool:
        """Whether a reason was collected."""
        return bool(self._found)

    def add(self, *errors: AutodistError) -> None:
        """Collect reasons. Those with equal messages count once; the reasons of a list count one by one."""
        for error in errors:
            for part in error.reasons or (error,):
                self._found.setdefault(str(part), part)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the refusal that the block raises, if it raises one.

        >>> refusals = Refusals()
        >>> with refusals.collecting():
        ...     raise CaptureError("'w' gets two gradients.")
        >>> refusals.require_none()
        Traceback (most recent call last):
        autodist_core.errors.CaptureError: 'w' gets two gradients.
        """
        try:
            yield
        except (CaptureError, NotYetError) as error:
            self.add(error)

    def require_none(self) -> None:
        """Raise what was collected: nothing, the only reason, or one error that lists all."""
        found = tuple(self._found.values())
        if len(found) == 1:
            raise found[0]
        if found:
            kind = NotYetError if all(isinstance(each, NotYetError) for each in found) else CaptureError
            lines = [f"\n  - {str(each).removeprefix(REFUSED)}" for each in found[: self.MOST]]
            lines += [f"\n  - and {len(found) - self.MOST} more"] if len(found) > self.MOST else []
            error = kind(f"{REFUSED}it has {len(found)} problems:{''.join(lines)}")
            error.reasons = found
            raise error


def did_you_mean(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return a sentence that suggests the known name closest to an unknown one; empty if no known name is close.

    ``likeness`` is the similarity that a suggested name must have, from 0 for any name to 1 for the same name.

    >>> did_you_mean("PartitonedPS", ["PS", "PartitionedPS"])
    " Did you mean 'PartitionedPS'?"
    >>> did_you_mean("zebra", ["PS", "PartitionedPS"])
    ''
    """
    close = nearest(name, known, likeness)
    return f" Did you mean '{close}'?" if close is not None else ""


def amount(count: int | str, one: str, several: str = "") -> str:
    """Return a number with the words for one thing, or for several: by default the same words with an s.

    >>> amount(1, "step"), amount(0, "step"), amount("8,400", "parameter"), amount(1, "node is", "nodes are")
    ('1 step', '0 steps', '8,400 parameters', '1 node is')
    """
    return f"{count} {one if str(count) == '1' else several or f'{one}s'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are.

    >>> some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name closest to an unknown one; None if no known name is close.

    >>> nearest("custer", ["cluster", "gpus"])
    'cluster'
    """
    by_lower_case = {candidate.lower(): candidate for candidate in reversed(list(known))}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=likeness)
    return by_lower_case[close[0]] if close else None
