"""Run one action on several agents in parallel; one failure does not stop the others."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import LaunchError
from autodist_core.log import Waiting

S = TypeVar("S")
T = TypeVar("T")
_POLL_SECONDS = 0.5


def run_in_parallel(
    subjects: Sequence[S], action: Callable[[S], T], waiting: Waiting | None = None,
    name: Callable[[S], str] = str,
) -> list[T | LaunchError]:
    """Call `action` with each subject, each call in a thread of its own; return the results in the same order.

    A call that raises a LaunchError has that error as its result. Any other exception is raised when all calls have
    ended. Ctrl-C ends the wait at once; the calls that still run end by their own deadlines. `waiting` is told the
    names of the subjects whose calls still run.

    >>> run_in_parallel([1, 2], lambda number: 10 * number)
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

    # Python waits at its end for the threads of a pool, but not for daemon threads.
    threads = [threading.Thread(target=run, args=(position,), daemon=True) for position in range(len(subjects))]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        # Python notices a Ctrl-C that comes just before a wait only when that wait is over, so the waits are short.
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if waiting is not None:
                calls = zip(subjects, threads, strict=True)
                waiting.on([name(subject) for subject, call in calls if call.is_alive()], begin)
    if faults:
        raise faults[0]
    return [outcomes[position] for position in range(len(subjects))]


def ask_in_parallel(
    agents: Sequence[AgentHandle], ask: Callable[[AgentHandle], T], doing: str, seconds: float
) -> tuple[dict[AgentHandle, T], dict[AgentHandle, LaunchError]]:
    """Call `ask` with all agents in parallel; return the answers, and the errors of the agents that failed.

    `doing` says what they are asked to do, and `seconds` how long they may.

    >>> ask_in_parallel([], lambda agent: agent.node.address, "say their names", 1)
    ({}, {})
    """
    waiting = Waiting(doing, len(agents), seconds)
    outcomes = run_in_parallel(agents, ask, waiting, lambda agent: agent.node.address)
    found = list(zip(agents, outcomes, strict=True))
    errors = {agent: each for agent, each in found if isinstance(each, LaunchError)}
    return {agent: each for agent, each in found if not isinstance(each, LaunchError)}, errors


def end_agents(agents: Sequence[AgentHandle], seconds: float = 5.0, patience: float | None = None) -> None:
    """End all agents in parallel; an agent that has not ended after `seconds` is killed.

    With `patience`, the caller waits for so many seconds at most, and a thread goes on: it can take long until nothing
    is left to try with a machine that does not answer.

    >>> end_agents([])
    """
    for agent in agents:
        agent.tell("end")
    if patience is None:
        run_in_parallel(agents, lambda agent: agent.wait_for_end(seconds))
    else:
        ending = threading.Thread(target=end_agents, args=(agents, seconds), daemon=True, name="autodist-ending")
        ending.start()
        ending.join(patience)
