"""The same with several agents at once: what fails at one keeps nobody from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import LaunchError

S = TypeVar("S")
T = TypeVar("T")
_TICK = 0.5


def attempt(subjects: Sequence[S], action: Callable[[S], T]) -> list[T | LaunchError]:
    """What `action` gives for each, all at once, or the LaunchError that it raises.

    Ctrl-C ends the wait at once; what is under way then is left to itself, and to its deadline.

    >>> attempt([1, 2], lambda number: 10 * number)
    [10, 20]
    """
    outcomes: dict[int, T | LaunchError] = {}
    faults: list[BaseException] = []

    def run(position: int) -> None:
        try:
            outcomes[position] = action(subjects[position])
        except LaunchError as error:
            outcomes[position] = error
        except BaseException as error:
            faults.append(error)

    # A pool's threads would be waited for, by the pool and again when Python ends.
    threads = [threading.Thread(target=run, args=(position,), daemon=True) for position in range(len(subjects))]
    for thread in threads:
        thread.start()
    for thread in threads:
        # A Ctrl-C that comes as a wait begins is noticed when the wait is over.
        while thread.is_alive():
            thread.join(_TICK)
    if faults:
        raise faults[0]
    return [outcomes[position] for position in range(len(subjects))]


def end(agents: Sequence[AgentHandle], seconds: float = 5.0) -> None:
    """End agents, all at once."""
    for agent in agents:
        agent.ask_to_end()
    attempt(agents, lambda agent: agent.finish(seconds))
