"""The login: which keys there are, the offer of each to the server, and the message when the server accepts none.

In: a `Target` and a transport that is connected to it. Out: an authenticated transport, or an `Unreachable` that lists
what was tried, what the server accepts, and what to do.
"""

import base64
import contextlib
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import paramiko

from autodist_core.cluster.ssh.config import Target
from autodist_core.cluster.ssh.connection import error_text
from autodist_core.cluster.ssh.reach import Deadline, Unreachable, within

PASSPHRASE, PASSWORD = "AUTODIST_SSH_PASSPHRASE", "AUTODIST_SSH_PASSWORD"
AGENT_SECONDS = 5.0
_KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


_Keys = tuple[list[tuple[str, paramiko.PKey]], list[str]]
"""The keys to offer, each with its name for messages, and what is wrong with the configuration's other keys."""


def keys(target: Target, deadline: Deadline, undo: contextlib.ExitStack) -> _Keys:
    """The keys for ``target``: first the keys that it names, then the other keys of the ssh agent.

    A key that the ssh agent holds is used from there, so that its file need not be decrypted.

    >>> target = Target.of("worker", {"hostname": "10.0.0.2", "identityfile": ["/missing"]}, None, None, None)
    >>> with contextlib.ExitStack() as undo:
    ...     keys(target, Deadline(5), undo)[1][-1]
    'key /missing does not exist: correct the name, or make one with ssh-keygen'
    """
    found: _Keys = [], []
    usable, unusable = found
    from_agent = _agent_keys(unusable, deadline, undo)
    for file in target.identity_files:
        try:
            public = _public_part(file)
            usable.append((f"key {file}", from_agent.pop(public) if public in from_agent else _load(file)))
        except (ValueError, OSError) as error:
            if file == target.key_file:
                raise Unreachable(f"key {file} {_fault(error)}") from None
            if not (isinstance(error, FileNotFoundError) and target.default_keys):
                unusable.append(f"key {file} {_fault(error)}")
    if not target.identities_only:
        usable += [(f"the agent's {key.get_name()} {key.fingerprint}", key) for key in from_agent.values()]
    return found


def _fault(error: ValueError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist: correct the name, or make one with ssh-keygen"
    return f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)


def _agent_keys(unusable: list[str], deadline: Deadline, undo: contextlib.ExitStack) -> dict[bytes, paramiko.PKey]:
    limit = deadline.sooner(AGENT_SECONDS)

    def ask() -> paramiko.Agent:
        agent = paramiko.Agent()
        if limit.passed:
            agent.close()
        return agent

    try:
        agent = within(limit, ask)
    except (paramiko.SSHException, OSError) as error:
        unusable.append(f"the ssh agent at {os.environ.get('SSH_AUTH_SOCK')} fails ({error_text(error, limit)})")
        return {}
    undo.callback(agent.close)
    return {key.asbytes(): key for key in agent.get_keys()}


def _public_part(file: str) -> bytes:
    """The public half of a key: OpenSSH's format has it unencrypted, and other formats have a file ``.pub``."""
    data = Path(file).read_bytes()
    try:
        if b"OPENSSH PRIVATE KEY" in data:
            message = paramiko.Message(base64.b64decode(data.split(b"-----")[2]).removeprefix(b"openssh-key-v1\0"))
            for _ in ("cipher", "derivation", "its options"):
                message.get_string()
            message.get_int()
            return message.get_string()
        beside = Path(f"{file}.pub")
        data = beside.read_bytes() if data.startswith(b"-----") and beside.exists() else data
        return base64.b64decode(data.split()[1]) if data.startswith((b"ssh-", b"ecdsa-", b"sk-")) else b""
    except (ValueError, IndexError, struct.error):
        # The file holds no key; `_load` finds that out and says so.
        return b""


def _load(file: str) -> paramiko.PKey:
    """A private key, with its certificate if there is a file ``-cert.pub``; a ValueError says what is wrong."""
    passphrase = os.environ.get(PASSPHRASE)
    key = _read(file, None) or (_read(file, passphrase) if passphrase else None)
    if key is None:
        how = f"and {PASSPHRASE} does not open it" if passphrase else f"and {PASSPHRASE} is not set"
        raise ValueError(f"is encrypted, {how}: set the passphrase there, or give the key to ssh-agent with ssh-add")
    if Path(f"{file}-cert.pub").exists():
        try:
            key.load_certificate(f"{file}-cert.pub")
        except (paramiko.SSHException, ValueError, IndexError) as error:
            raise ValueError(f"has a '-cert.pub' beside it that is no certificate ({error_text(error)})") from None
    return key


def _read(file: str, passphrase: str | None) -> paramiko.PKey | None:
    """The key of a file; None if the file needs a passphrase, or another one than this."""
    for kind in _KINDS:
        try:
            return kind.from_private_key_file(file, password=passphrase)
        except paramiko.PasswordRequiredException:
            return None
        except (paramiko.SSHException, ValueError, IndexError):
            continue
    if passphrase:
        return None
    raise ValueError("is no private key that can be used: ed25519, ecdsa or rsa, in OpenSSH's format or PEM")


def log_in(
    transport: paramiko.Transport, target: Target, keys: _Keys, password: str | None, deadline: Deadline
) -> None:
    """Offer one key after the other to the server, then the password; a server may require both."""
    # The answer to the method "none" is the list of the methods that the server accepts.
    offers: list[tuple[str, str, Callable[[], list[str]]]] = [("", "none", partial(transport.auth_none, target.user))]
    offers += [(name, "publickey", partial(transport.auth_publickey, target.user, key)) for name, key in keys[0]]
    if password:
        offers.append(
            (f"the password of {PASSWORD}", "password", partial(transport.auth_password, target.user, password))
        )
    wanted, tried = ["none"], []
    for name, method, offer in offers:
        # If a server asks for the password interactively, paramiko answers with it.
        if method not in wanted and not (method == "password" and "keyboard-interactive" in wanted):
            continue
        transport.auth_timeout = deadline.left
        try:
            wanted = offer() or wanted
        except paramiko.BadAuthenticationType as refused:
            wanted = refused.allowed_types
        except (paramiko.SSHException, OSError, EOFError):
            if deadline.passed:
                raise Unreachable(
                    f"{target} did not answer within {deadline.seconds:g} s to {name or 'a login'}"
                ) from None
        if transport.is_authenticated():
            return
        tried += [name] if name else []
        if not transport.is_active():
            break
    raise Unreachable(_refusal(target, tried, keys[1], wanted, transport.is_active()))


def _refusal(target: Target, tried: list[str], unusable: list[str], wanted: list[str], active: bool) -> str:
    parts = [f"{target.place} does not let '{target.user}' in. Tried: {', '.join(tried) or 'nothing'}"]
    if not active:
        parts.append(f"It hung up after {len(tried)}: name the right key in 'key_file', and no other is offered")
    parts.append(f"It accepts: {', '.join(wanted) if wanted != ['none'] else 'it did not say'}")
    parts += [f"Not usable: {'; '.join(unusable)}"] if unusable else []
    password = f" or set {PASSWORD}" if {"password", "keyboard-interactive"} & set(wanted) else ""
    parts.append(f"Write your public key into ~/.ssh/authorized_keys there, correct 'username' or 'key_file'{password}")
    return ". ".join(parts)
