"""A login on another machine, on which programs are started; its end is noticed, and so is a machine that is silent."""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
from collections.abc import Mapping

import paramiko

from autodist_core.cluster.ssh.process import Process
from autodist_core.cluster.ssh.reach import Deadline, closing_after
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import SSHGroup

__all__ = ["Connection", "command_line", "words"]


class Connection:
    """A login on one host. Close it, or use it as a context manager; its programs lose their streams then."""

    def __init__(
        self, host: str, group: SSHGroup, transport: paramiko.Transport, seconds: float, undo: contextlib.ExitStack
    ) -> None:
        self.host, self.group = host, group
        self._transport, self._seconds, self._undo = transport, seconds, undo
        self._closed = threading.Event()
        self._silence: str | None = None
        threading.Thread(target=self._keep_alive, name=f"keepalive of {host}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the connection stands and its other end has answered lately."""
        return self._transport.is_active()

    @property
    def lost(self) -> str | None:
        """Why the connection is gone; ``None`` while it stands."""
        if self.alive:
            return None
        return self._silence or words(self._transport.get_exception() or EOFError())

    def start(self, command: str, env: Mapping[str, str] | None = None, *, deadline_seconds: float = 30) -> Process:
        """Start one program, ``command`` being its name and its arguments as a shell reads them.

        The user's login shell there runs the group's ``python_venv`` first and becomes the program then. ``env`` comes
        on top of the group's ``shared_envs``. A connection on which that is not answered in time is closed.
        """
        line = command_line(self.host, self.group, command, env or {})
        deadline = Deadline(deadline_seconds)
        try:
            # The second of these waits has no timeout of its own.
            with self._speaking(deadline.seconds):
                channel = self._transport.open_session(timeout=deadline.left)
                channel.exec_command(line)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LaunchError(
                self.host, f"'{command}' was not started: {words(error, deadline)}. Connect again."
            ) from None
        return Process(channel, self.host)

    def close(self) -> None:
        """Log out, and out of the hosts on the way."""
        self._closed.set()
        self._undo.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._seconds) and self.alive:
            # No server knows the request, and saying so is answer enough.
            with contextlib.suppress(Exception), self._speaking(self._seconds):
                self._transport.global_request("keepalive@openssh.com", wait=True)

    def _speaking(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        def give_up() -> None:
            self._silence = f"no answer within {seconds:g} s"
            self._transport.close()

        return closing_after(seconds, give_up)


def command_line(host: str, group: SSHGroup, command: str, env: Mapping[str, str]) -> str:
    """What the login shell on ``host`` is given.

    >>> group = SSHGroup(python_venv="source ~/venv/bin/activate", shared_envs=(("A", "1"),))
    >>> command_line("10.0.0.2", group, "python -m this", {"B": "it's two"})
    'source ~/venv/bin/activate && exec env A=1 B=\\'it\\'"\\'"\\'s two\\' python -m this'
    """
    variables = {**dict(group.shared_envs), **env}
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise LaunchError(
                host,
                f"{name!r} cannot be set there: the name of an environment variable has letters, digits and '_', does "
                "not begin with a digit, and its value has no NUL. Correct 'shared_envs'.",
            )
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    # A server drops most of the variables that ssh itself can send, so they stand in the command.
    program = " ".join(["exec", *(["env", *settings] if settings else []), command])
    return f"{group.python_venv} && {program}" if group.python_venv else program


def words(error: BaseException, deadline: Deadline | None = None) -> str:
    """What paramiko raised, without its final dot; some of it has no words."""
    if deadline and (deadline.passed or isinstance(error, TimeoutError)):
        return f"no answer within {deadline.seconds:g} s"
    said = str(getattr(error, "text", "") or error).strip().removesuffix(".")
    return said or ("the connection was closed" if isinstance(error, EOFError) else type(error).__name__)
