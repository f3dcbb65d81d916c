"""Logging in: which keys there are, what the server thinks of them, and what to say when it wants none."""

from __future__ import annotations

import base64
import contextlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import paramiko

from autodist_core.cluster.ssh.config import Target
from autodist_core.cluster.ssh.connection import words
from autodist_core.cluster.ssh.reach import Deadline, Unreachable, within

__all__ = ["PASSPHRASE", "PASSWORD", "Keys", "keys", "log_in"]

PASSPHRASE, PASSWORD = "AUTODIST_SSH_PASSPHRASE", "AUTODIST_SSH_PASSWORD"
AGENT_SECONDS = 5.0
_KINDS = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


@dataclass
class Keys:
    """The keys to try, by what to call them, and what is wrong with others that the configuration names."""

    usable: list[tuple[str, paramiko.PKey]] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


def keys(target: Target, deadline: Deadline, undo: contextlib.ExitStack) -> Keys:
    """The keys for ``target``: those it names, from the agent where it holds them, then the agent's others."""
    found = Keys()
    held = _agent_keys(found, deadline, undo)
    for file in target.identity_files:
        try:
            public = _public_part(file)
            found.usable.append((f"key {file}", held.pop(public) if public in held else _load(file)))
        except (ValueError, OSError) as error:
            if file == target.key_file:
                raise Unreachable(f"key {file} {_fault(error)}") from None
            if not (isinstance(error, FileNotFoundError) and target.default_keys):
                found.unusable.append(f"key {file} {_fault(error)}")
    if not target.identities_only:
        found.usable += [(f"the agent's {key.get_name()} {key.fingerprint}", key) for key in held.values()]
    return found


def _fault(error: ValueError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist: correct the name, or make one with ssh-keygen"
    return f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)


def _agent_keys(found: Keys, deadline: Deadline, undo: contextlib.ExitStack) -> dict[bytes, paramiko.PKey]:
    limit = deadline.sooner(AGENT_SECONDS)

    def ask() -> paramiko.Agent:
        agent = paramiko.Agent()
        if limit.passed:
            agent.close()
        return agent

    try:
        agent = within(limit, ask)
    except TimeoutError:
        found.unusable.append(f"the ssh agent at {os.environ.get('SSH_AUTH_SOCK')} does not answer")
        return {}
    except (paramiko.SSHException, OSError) as error:
        found.unusable.append(f"the ssh agent at {os.environ.get('SSH_AUTH_SOCK')} fails ({words(error)})")
        return {}
    undo.callback(agent.close)
    return {key.asbytes(): key for key in agent.get_keys()}


def _public_part(file: str) -> bytes:
    """The public half, which OpenSSH's format leaves readable and which stands beside files of other formats."""
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
        # No key at all, as reading its private half will find out.
        return b""


def _load(file: str) -> paramiko.PKey:
    """A private key, with its certificate if one lies beside it; ValueError says what is wrong with the file."""
    passphrase = os.environ.get(PASSPHRASE)
    key = _read(file, None) or (_read(file, passphrase) if passphrase else None)
    if key is None:
        how = f"and {PASSPHRASE} does not open it" if passphrase else f"and {PASSPHRASE} is not set"
        raise ValueError(f"is encrypted, {how}: set the passphrase there, or give the key to ssh-agent with ssh-add")
    if Path(f"{file}-cert.pub").exists():
        try:
            key.load_certificate(f"{file}-cert.pub")
        except (paramiko.SSHException, ValueError, IndexError) as error:
            raise ValueError(f"has a certificate beside it that is none ({words(error)})") from None
    return key


def _read(file: str, passphrase: str | None) -> paramiko.PKey | None:
    """The key, or None if it takes a passphrase or another one."""
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


def log_in(transport: paramiko.Transport, target: Target, keys: Keys, password: str | None, deadline: Deadline) -> None:
    """Offer one key after the other, then the password; a server may want both."""
    # Offering nothing is how a server is asked what it wants.
    offers: list[tuple[str, str, Callable[[], list[str]]]] = [("", "none", partial(transport.auth_none, target.user))]
    offers += [(name, "publickey", partial(transport.auth_publickey, target.user, key)) for name, key in keys.usable]
    if password:
        offers.append(
            (f"the password of {PASSWORD}", "password", partial(transport.auth_password, target.user, password))
        )
    wanted, tried = ["none"], []
    for name, method, offer in offers:
        # Where a server asks for a password in a dialogue, paramiko answers.
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
    raise Unreachable(_refusal(target, tried, keys.unusable, wanted, transport.is_active()))


def _refusal(target: Target, tried: list[str], unusable: list[str], wanted: list[str], active: bool) -> str:
    parts = [f"{target.place} does not let '{target.user}' in. Tried: {', '.join(tried) or 'nothing'}"]
    if not active:
        parts.append(f"It hung up after {len(tried)}: name the right key in 'key_file', and no other is offered")
    parts.append(f"It accepts: {', '.join(wanted) if wanted != ['none'] else 'it did not say'}")
    parts += [f"Not usable: {'; '.join(unusable)}"] if unusable else []
    password = f" or set {PASSWORD}" if {"password", "keyboard-interactive"} & set(wanted) else ""
    parts.append(f"Write your public key into ~/.ssh/authorized_keys there, correct 'username' or 'key_file'{password}")
    return ". ".join(parts)
