"""The route to a host: a stream of bytes, over jump hosts if need be, the check of the host's key, and a login."""

import contextlib
import logging
import os
import threading
from typing import Any

import paramiko

from autodist_core.cluster.ssh import config, known_hosts, login, reach
from autodist_core.cluster.ssh.config import Target
from autodist_core.cluster.ssh.connection import Connection, error_text
from autodist_core.cluster.ssh.known_hosts import HostKey
from autodist_core.cluster.ssh.reach import Deadline, Program, Unreachable
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import SSHGroup

# paramiko logs each error that it raises, with a traceback. These lines go to this logger, which shows them nowhere
# unless a handler is added to it.
_LOG = "autodist_core.cluster.ssh"
logging.getLogger(_LOG).addHandler(logging.NullHandler())
logging.getLogger(_LOG).propagate = False


def connect(
    address: str, group: SSHGroup | None = None, deadline_seconds: float = 30, *, keepalive_seconds: float = 10
) -> Connection:
    """Log in at ``address`` within ``deadline_seconds``, as ``group`` and ssh's own configuration say.

    A host key that no ``known_hosts`` file names is refused, and ``StrictHostKeyChecking no`` is ignored. A connection
    whose other end is silent for twice ``keepalive_seconds`` is closed. The password and the passphrase of keys come
    from the environment, ``AUTODIST_SSH_PASSWORD`` and ``AUTODIST_SSH_PASSPHRASE``::

        with contextlib.closing(connect("10.0.0.2", group)) as connection:
            print(connection.start("hostname").stdout.read())
    """
    group = group or SSHGroup()
    with contextlib.ExitStack() as undo:
        transport = _Route(group, Deadline(deadline_seconds), undo).open(address)
        return Connection(address, group, transport, keepalive_seconds, undo.pop_all())


class _Route:
    """One route; ``undo`` collects what is to be closed when the connection ends."""

    def __init__(self, group: SSHGroup, deadline: Deadline, undo: contextlib.ExitStack) -> None:
        self.group, self.deadline, self.undo = group, deadline, undo

    def open(self, name: str, jumps: tuple[str, ...] | None = None, via: tuple[str, ...] = ()) -> paramiko.Transport:
        """Log in at ``name``, over the hosts ``jumps``; ``via`` are the hosts to which ``name`` is a jump host."""
        target = self._target(name, jumps, via)
        try:
            keys = login.keys(target, self.deadline, self.undo)
            stream, program = self._stream(target, (*via, target.name))
            transport = self._handshake(target, stream, program)
            self._check_host_key(target, transport)
            # The password is for the node: it is not offered to a jump host.
            password = None if via else os.environ.get(login.PASSWORD)
            login.log_in(transport, target, keys, password, self.deadline)
        except Unreachable as error:
            raise LaunchError(target.name, f"{error}.") from None
        except OSError as error:
            raise LaunchError(target.name, f"an operation on this machine failed: {error_text(error)}.") from None
        return transport

    def _target(self, name: str, jumps: tuple[str, ...] | None, via: tuple[str, ...]) -> Target:
        try:
            # The ssh group has settings for the nodes; for jump hosts, ssh's own configuration counts.
            user, port = self.group.username, self.group.port
            if via:
                name, user, port = config.jump(name)
            if name in via:
                way = " -> ".join((*via, name))
                raise ValueError(f"ProxyJump leads in a circle ({way}): give one of them 'ProxyJump none'")
            options = paramiko.SSHConfig.from_text(config.text(user, port)).lookup(name)
            return Target.of(
                name, options, None if via else self.group.key_file, self.group.key_file if via else None, jumps
            )
        except (paramiko.SSHException, OSError, ValueError) as error:
            reason = f"ssh's configuration ({config.USER}) cannot be used: {error_text(error)}."
            raise LaunchError(name, reason) from None

    def _stream(self, target: Target, via: tuple[str, ...]) -> tuple[Any, Program | None]:
        if target.jumps:
            *before, last = target.jumps
            try:
                transport = self.open(last, tuple(before) or None, via)
            except LaunchError as error:
                reason = error.reason.removesuffix(".")
                raise Unreachable(f"jump host {error.host}: {reason}") from None
            deadline = self.deadline.sooner(target.connect_timeout)
            try:
                there = (target.hostname, target.port)
                return transport.open_channel("direct-tcpip", there, ("127.0.0.1", 0), timeout=deadline.left), None
            except (paramiko.SSHException, OSError, EOFError) as error:
                why = error_text(error, deadline)
                raise Unreachable(f"jump host {last} does not connect to {target.place} ({why})") from None
        if target.proxy_command:
            program = Program(target.proxy_command)
            self.undo.callback(program.close)
            return program.socket, program
        deadline = self.deadline.sooner(target.connect_timeout)
        stream = reach.tcp(target.hostname, target.port, target.address_family, deadline)
        self.undo.callback(stream.close)
        return stream, None

    def _handshake(self, target: Target, stream: Any, program: Program | None) -> paramiko.Transport:
        """Agree on a cipher; the host key is checked later, so the other end is not trusted yet."""
        deadline = self.deadline.sooner(target.connect_timeout)
        transport = paramiko.Transport(stream)
        self.undo.callback(_end, transport)
        transport.set_log_channel(_LOG)
        # One second more than the deadline, so that the wait below always ends first.
        transport.banner_timeout = transport.handshake_timeout = deadline.left + 1
        _prefer_known_keys(transport.get_security_options(), target)
        done = threading.Event()
        transport.start_client(event=done)
        if done.wait(deadline.left) and transport.is_active():
            return transport
        error = transport.get_exception() or EOFError()
        if deadline.passed:
            raise Unreachable(
                f"{target.place} accepts connections, and no ssh server answered within {deadline.seconds:g} s: "
                "the machine hangs, or something else listens there"
            )
        if program and (outcome := program.outcome()):
            raise Unreachable(f"ProxyCommand '{program.command}' does not connect to {target.place}: {outcome}")
        raise Unreachable(
            f"what listens on {target.place} does not complete ssh's handshake ({error_text(error)}): it is no "
            "ssh server, or it refuses this machine"
        )

    def _check_host_key(self, target: Target, transport: paramiko.Transport) -> None:
        shown = transport.get_remote_server_key()
        key = HostKey(shown.get_name(), shown.get_base64())
        verdict, entries = known_hosts.verdict(target.known_hosts, target.known_as, key)
        if verdict != "known":
            raise Unreachable(known_hosts.refusal(verdict, key, entries, target.accept))


def _end(transport: paramiko.Transport) -> None:
    """Close a transport and wait for its thread, which ends within a tenth of a second."""
    transport.close()
    if transport.is_alive():
        transport.join(1)


def _prefer_known_keys(options: Any, target: Target) -> None:
    """Ask the server for a key of a type that ``known_hosts`` has: a server may have several keys, and one is known."""
    known = {entry.key.type for name in target.known_as for entry in known_hosts.lookup(target.known_hosts, name)}
    # An RSA key is one type of key with several types of signature.
    options.key_types = sorted(
        options.key_types, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-sha2-") else kind) not in known
    )
