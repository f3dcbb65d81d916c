"""The same with several agents at once: what fails at one keeps nobody from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from autodist_core.cluster.handle import AgentHandle
from autodist_core.errors import LaunchError

S = TypeVar("S")
T = TypeVar("T")


def attempt(subjects: Sequence[S], action: Callable[[S], T]) -> list[T | LaunchError]:
    """What `action` gives for each, all at once, or the LaunchError that it raises.

    >>> attempt([1, 2], lambda number: 10 * number)
    [10, 20]
    """

    def outcome(subject: S) -> T | LaunchError:
        try:
            return action(subject)
        except LaunchError as error:
            return error

    with ThreadPoolExecutor(len(subjects) or 1) as pool:
        return list(pool.map(outcome, subjects))


def end(agents: Sequence[AgentHandle], seconds: float = 5.0) -> None:
    """End agents, all at once."""
    for agent in agents:
        agent.ask_to_end()
    attempt(agents, lambda agent: agent.finish(seconds))
