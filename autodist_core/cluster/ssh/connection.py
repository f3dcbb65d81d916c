"""A login on one machine: it starts programs there, opens streams to ports there, and listens there.

A keepalive request at a fixed interval notices a machine that does not answer; the connection is closed then.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import Any

import paramiko

from autodist_core.cluster.ssh.reach import Deadline, closing_after
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import SSHGroup


class Process:
    """A running program. Read both of its outputs: they share a window of 2 MB, and an unread one blocks the other.

    A read waits as long as the connection is open; a connection whose other end does not answer is closed. The bytes
    end when the program ends or the connection is lost; ``connection.alive`` tells which.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.stdin = channel.makefile_stdin("wb")
        self.stdout = channel.makefile("rb")
        self.stderr = channel.makefile_stderr("rb")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit status; a TimeoutError after ``timeout`` seconds.

        The status is -1 if a signal ended the program, or if the connection was lost.
        """
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"the program has not ended within {timeout:g} s.")
        return int(self._channel.exit_status)

    def close(self) -> None:
        """Close the streams: a program that reads its input sees the end of it, and other programs run on."""
        self._channel.close()


class Connection:
    """A login on one host; `close` ends it and the streams of its programs."""

    def __init__(
        self, host: str, group: SSHGroup, transport: paramiko.Transport, seconds: float, undo: contextlib.ExitStack
    ) -> None:
        self.host, self.group = host, group
        self._transport, self._seconds, self._undo = transport, seconds, undo
        self._ports: dict[int, Callable[[Any], None]] = {}
        self._closed = threading.Event()
        self._silence: str | None = None
        threading.Thread(target=self._keep_alive, name=f"keepalive of {host}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the connection is open; it is closed when the other end does not answer in time."""
        return self._transport.is_active()

    @property
    def lost(self) -> str | None:
        """Why the connection was lost; ``None`` while it is open."""
        if self.alive:
            return None
        return self._silence or error_text(self._transport.get_exception() or EOFError())

    def start(self, command: str, env: Mapping[str, str] | None = None, *, deadline_seconds: float = 30) -> Process:
        """Start one program; ``command`` is its name and its arguments, as a shell reads them.

        The user's login shell on the host runs the group's ``python_venv`` and then becomes the program. Variables of
        ``env`` come before equal ones of the group's ``shared_envs``. If the host does not answer in time, the
        connection is closed.
        """
        variables = assignments(self.host, {**dict(self.group.shared_envs), **(env or {})})
        line = command_line(self.group.python_venv, command, len(variables))
        deadline = Deadline(deadline_seconds)
        try:
            # `exec_command` waits without a timeout, so the connection is closed after the deadline.
            with self._speaking(deadline.seconds):
                channel = self._transport.open_session(timeout=deadline.left)
                channel.exec_command(line)
                channel.sendall(variables)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LaunchError(
                self.host, f"'{command}' was not started: {error_text(error, deadline)}. Connect again."
            ) from None
        return Process(channel)

    def open(self, address: str, port: int, *, deadline_seconds: float = 10) -> Any:
        """A stream of bytes to a port that the host reaches at this address."""
        try:
            return self._transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=deadline_seconds
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LaunchError(
                self.host, f"nothing answers there at {address}, port {port}: {error_text(error)}."
            ) from None

    def listen(self, answer: Callable[[Any], None]) -> int:
        """Listen on the host's loopback and return the port; `answer` is called with each stream, in its own thread."""

        def dispatch(channel: Any, _: Any, server: tuple[str, int]) -> None:
            # The transport calls one handler for all its ports, and waits until the handler returns.
            threading.Thread(target=self._ports[server[1]], args=(channel,), daemon=True).start()

        try:
            port = int(self._transport.request_port_forward("127.0.0.1", 0, dispatch))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LaunchError(
                self.host,
                f"its ssh server forwards no ports: {error_text(error)}. Tunnels need 'AllowTcpForwarding yes' there.",
            ) from None
        self._ports[port] = answer
        return port

    def close(self) -> None:
        """Log out from the host and from the jump hosts on the way."""
        self._closed.set()
        self._undo.close()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._seconds) and self.alive:
            # No server knows this request; its refusal shows that it lives.
            with contextlib.suppress(Exception), self._speaking(self._seconds):
                self._transport.global_request("keepalive@openssh.com", wait=True)

    def _speaking(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        def give_up() -> None:
            self._silence = f"no answer within {seconds:g} s"
            self._transport.close()

        return closing_after(seconds, give_up)


def command_line(python_venv: str, command: str, size: int) -> str:
    """The command line for the login shell, for a program whose input begins with `size` bytes of variables.

    >>> print(command_line("source ~/venv/bin/activate", "python -m this", 0))
    source ~/venv/bin/activate && exec python -m this
    >>> print(command_line("", "python -m this", 20))
    exec /bin/sh -c 'given="$(dd bs=1 count=20 2>/dev/null)" && eval "$given" && exec python -m this'
    """
    if size:
        # The variables come over the program's input: a server drops most variables that ssh itself sends, and every
        # user of the host can see a command line. `dd` reads no byte more than them, and every host has `sh`.
        script = f'given="$(dd bs=1 count={size} 2>/dev/null)" && eval "$given" && exec {command}'
        command = f"/bin/sh -c {shlex.quote(script)}"
    return f"{python_venv} && exec {command}" if python_venv else f"exec {command}"


def assignments(host: str, variables: Mapping[str, str]) -> bytes:
    """Environment variables as lines that a shell evaluates.

    >>> print(assignments("10.0.0.2", {"A": "1", "B": "two words"}).decode(), end="")
    export A=1
    export B='two words'
    """
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise LaunchError(
                host,
                f"{name!r} cannot be set there: the name of an environment variable has letters, digits and '_', does "
                "not begin with a digit, and its value has no NUL. Correct 'shared_envs'.",
            )
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()).encode()


def error_text(error: BaseException, deadline: Deadline | None = None) -> str:
    """The text of an error that paramiko raised, without its final dot; if the deadline has passed, that instead.

    >>> error_text(OSError("no route.")), error_text(EOFError())
    ('no route', 'the connection was closed')
    """
    if deadline and (deadline.passed or isinstance(error, TimeoutError)):
        return f"no answer within {deadline.seconds:g} s"
    said = str(getattr(error, "text", "") or error).strip().removesuffix(".")
    return said or ("the connection was closed" if isinstance(error, EOFError) else type(error).__name__)
