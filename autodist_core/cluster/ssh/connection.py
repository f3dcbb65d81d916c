"""A login on one machine: one program that runs there, further commands, and ports that lead from one to the other.

One ``ssh`` runs as long as the program. It ends when this process ends, however that does: its input ends then, so that
the program's does. A keepalive notices a machine that does not answer.
"""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autodist_core.cluster.ssh import causes
from autodist_core.cluster.ssh.command import assignments, command_line, environment, is_asked, login, settings
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import SSHGroup

# The shell outlives `ssh` and removes the directory, also if the process that started both is gone by then.
_RUN = 'directory=$1; shift; ssh "$@"; status=$?; rm -rf "$directory"; exit $status'
_LOOPBACK = "127.0.0.1"


class Connection:
    """A login at ``host``, as ``group`` and ssh's own configuration say, and ``command``, which runs there.

    The user's login shell on the host runs the group's ``python_venv`` and then becomes the program. Variables of
    ``env`` come before equal ones of the group's ``shared_envs``. The password and the passphrase of keys come from the
    environment, ``AUTODIST_SSH_PASSWORD`` and ``AUTODIST_SSH_PASSPHRASE``. A connection whose other end is silent is
    closed after twice ``keepalive_seconds``, or after ``deadline_seconds`` if that is longer::

        with contextlib.closing(Connection("10.0.0.2", group, "hostname")) as connection:
            print(connection.stdout.read())
    """

    def __init__(
        self, host: str, group: SSHGroup, command: str, env: Mapping[str, str] | None = None,
        deadline_seconds: float = 30, keepalive_seconds: float = 10,
    ) -> None:
        self.host, self.group = host, group
        variables = assignments(host, {**dict(group.shared_envs), **(env or {})})
        line = command_line(group.python_venv, command, len(variables))
        _require_usable(host, group)
        self._directory = _new_directory(host)
        # Open here, so that it can be read when the directory is gone.
        self._log = (self._directory / "log").open("w+b")
        own = ["-E", str(self._directory / "log"), "-S", str(self._directory / "s")]
        # In a session of its own, so that Ctrl-C in the terminal does not end it.
        self._ssh = subprocess.Popen(
            ["/bin/sh", "-c", _RUN, "sh", str(self._directory), *own,
             *settings(deadline_seconds, keepalive_seconds), *login(group), "--", host, line],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(self._directory), start_new_session=True,
        )
        assert self._ssh.stdin and self._ssh.stdout and self._ssh.stderr
        self.stdin, self.stdout, self.stderr = self._ssh.stdin, self._ssh.stdout, self._ssh.stderr
        try:
            self._log_in(variables, deadline_seconds)
        except BaseException:
            self.close()
            raise

    def _log_in(self, variables: bytes, seconds: float) -> None:
        end = time.monotonic() + seconds
        late = threading.Timer(seconds, self._kill)
        late.daemon = True
        late.start()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(variables)
            self.stdin.flush()
        logged_in = self.stdout.readline()
        passed = seconds if time.monotonic() >= end else None
        late.cancel()
        if not logged_in:
            self._kill()
            # A ProxyCommand may have left a process that holds the pipe open.
            os.set_blocking(self.stderr.fileno(), False)
            errors = (self.stderr.read() or b"").decode(errors="replace").replace("\r", "")
            place = login(replace(self.group, key_file=None))
            accept = ["ssh", "-o", "StrictHostKeyChecking=accept-new", *place, self.host, "exit"]
            reason = causes.why_no_login(self._said(), errors, shlex.join(accept), passed)
            raise LaunchError(self.host, reason)

    @property
    def lost(self) -> str | None:
        """Why the connection was lost; None while it is open, and if the program has ended by itself."""
        return None if self._ssh.poll() is None else causes.why_lost(self._said())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit status, as `subprocess.Popen.wait`.

        The status is 255 if a signal ended the program, or if the connection was lost.
        """
        return self._ssh.wait(timeout)

    def run(self, command: str, seconds: float) -> None:
        """Run another command on the host, without its output, and wait for its end, at most so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ask(seconds, self.host, command)

    def lead_there(self, port: int, seconds: float = 10) -> int:
        """A port of this machine's loopback from which ssh leads to a port of the host's loopback."""
        with socket.create_server((_LOOPBACK, 0)) as server:
            here = int(server.getsockname()[1])
        self._forward(["-L", f"{_LOOPBACK}:{here}:{_LOOPBACK}:{port}"], seconds)
        return here

    def lead_here(self, ports: Sequence[int], seconds: float = 10) -> list[int]:
        """Ports of the host's loopback from which ssh leads to these ports of this machine's loopback."""
        options = [word for port in ports for word in ("-R", f"{_LOOPBACK}:0:{_LOOPBACK}:{port}")]
        return [int(port) for port in self._forward(options, seconds).split()]

    def close(self) -> None:
        """End ``ssh``: a program that reads its input sees the end of it."""
        if self._ssh.poll() is None:
            self._kill()
        self._ssh.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        self._said()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _kill(self) -> None:
        """End all processes of the session: ``ssh``, and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._ssh.pid, signal.SIGKILL)

    def _said(self) -> str:
        if not self._log.closed:
            self._text = os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace").replace("\r", "")
        return self._text

    def _forward(self, options: list[str], seconds: float) -> str:
        try:
            done = self._ask(seconds, "-O", "forward", *options, self.host)
        except subprocess.TimeoutExpired:
            raise LaunchError(self.host, f"ssh did not forward a port within {seconds:g} s.") from None
        if done.returncode:
            said = causes.last_words(done.stderr)
            raise LaunchError(
                self.host, f"its ssh server forwards no ports: {said}. Tunnels need 'AllowTcpForwarding yes' there."
            )
        return done.stdout

    def _ask(self, seconds: float, *words: str) -> subprocess.CompletedProcess[str]:
        """Let the ``ssh`` that runs do something more."""
        # If it has ended, another login is not wanted: the ProxyCommand prevents it.
        argv = ["ssh", "-F", "none", "-T", "-o", "ProxyCommand=false", "-S", str(self._directory / "s"), *words]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, start_new_session=True
        )


def _require_usable(host: str, group: SSHGroup) -> None:
    """Raise if the program or the key that the group names is missing; ssh itself would take other keys then."""
    if shutil.which("ssh") is None:
        raise LaunchError(host, "the program 'ssh' is not on this machine: install OpenSSH's client.")
    key = Path(os.path.expanduser(group.key_file or os.devnull))
    try:
        key.read_bytes()
    except OSError as error:
        remedy = "correct 'key_file', or make a key with ssh-keygen"
        raise LaunchError(host, f"key {key} cannot be read ({error.strerror}): {remedy}.") from None


def _new_directory(host: str) -> Path:
    """A directory for ssh's log, its socket, and the program that it asks for a password."""
    # First /tmp: the path of a socket has 100 characters at most.
    places = ("/tmp", os.environ.get("TMPDIR", "/var/tmp"), os.path.expanduser("~"))
    for place in places:
        with contextlib.suppress(OSError):
            disk = os.statvfs(place)
            runs_nothing = is_asked() and disk.f_flag & getattr(os, "ST_NOEXEC", 0)
            if disk.f_bavail and not runs_nothing:
                return Path(tempfile.mkdtemp(prefix="autodist-ssh-", dir=place))
    needs = "write and run" if is_asked() else "write"
    raise LaunchError(host, f"ssh can {needs} files in none of {', '.join(places)}: set TMPDIR to a short path.")
