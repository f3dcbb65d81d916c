"""ssh's own configuration: its text, with what the ResourceSpec says in front, and what it says of one host."""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodist_core.cluster.ssh import known_hosts

__all__ = ["Target", "jump", "text"]

USER, SYSTEM = "~/.ssh/config", "/etc/ssh/ssh_config"
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MAX_INCLUDES = 16

Jumps = tuple[str, ...] | None


@dataclass(frozen=True)
class Target:
    """One ssh server, and how to log in there."""

    name: str
    """As the ResourceSpec or a ProxyJump calls it."""
    hostname: str
    port: int
    user: str
    key_file: str | None
    """The key that the ResourceSpec names; no other is tried then."""
    identity_files: tuple[str, ...]
    default_keys: bool
    """Whether those are only where a key would lie, so that none need exist."""
    identities_only: bool
    known_hosts: tuple[Path, ...]
    learns_in: Path
    """The file that takes the key of a host that none of those names."""
    known_as: tuple[str, ...]
    """The names under which the host's key is known, the one to write first."""
    proxy_command: str | None
    jumps: tuple[str, ...]
    """Hosts to pass through, the first one first."""
    connect_timeout: float | None
    address_family: str

    @classmethod
    def of(
        cls, name: str, options: Mapping[str, Any], key_file: str | None, other_key: str | None, jumps: Jumps
    ) -> Target:
        """What ``options``, which ssh's configuration has for ``name``, mean.

        ``key_file`` and ``jumps`` win over them, and ``other_key`` comes after them.
        """
        # As in ssh, the first of the two that is written counts, and "none" counts as well.
        proxy = next((key for key in options if key in ("proxyjump", "proxycommand")), None)
        if jumps is not None:
            proxy = None
        elif proxy == "proxyjump":
            jumps = tuple(hop.strip() for hop in options[proxy].split(",") if hop.strip().lower() != "none")
        identity_files = list(options.get("identityfile", ()))
        identity_files = (
            [key_file] if key_file else [*(identity_files or _DEFAULT_KEYS), *([other_key] if other_key else [])]
        )
        users, systems = (
            [Path(file).expanduser() for file in shlex.split(options.get(key, default)) if file != "none"]
            for key, default in (
                ("userknownhostsfile", _DEFAULT_KNOWN_HOSTS),
                ("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS),
            )
        )
        port, alias, timeout = int(options.get("port", 22)), options.get("hostkeyalias"), options.get("connecttimeout")
        return cls(
            name=name,
            hostname=options["hostname"],
            port=port,
            user=options.get("user") or getpass.getuser(),
            key_file=os.path.expanduser(key_file) if key_file else None,
            identity_files=tuple(dict.fromkeys(os.path.expanduser(file) for file in identity_files)),
            default_keys="identityfile" not in options,
            identities_only=bool(key_file) or options.get("identitiesonly") == "yes",
            known_hosts=(*users, *systems),
            learns_in=(users or [Path(_DEFAULT_KNOWN_HOSTS.split()[0]).expanduser()])[0],
            known_as=(alias.lower(),) if alias else known_hosts.names(options["hostname"], port),
            proxy_command=options[proxy] if proxy == "proxycommand" else None,
            jumps=jumps or (),
            connect_timeout=float(timeout) if timeout and timeout.isdecimal() and int(timeout) else None,
            address_family=options.get("addressfamily", "any"),
        )

    @property
    def place(self) -> str:
        """Where the server is, in words."""
        return f"port {self.port}" if self.hostname == self.name else f"port {self.port} of {self.hostname}"

    @property
    def accept(self) -> str:
        """The command that writes the server's key into ``known_hosts``."""
        if self.jumps or self.proxy_command or self.known_as != known_hosts.names(self.hostname, self.port):
            return f"ssh -p {self.port} -l {shlex.quote(self.user)} {self.name} exit"
        return f"ssh-keyscan -p {self.port} {self.hostname} >> {shlex.quote(str(self.learns_in))}"

    def __str__(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}:{self.port}"


def jump(hop: str) -> tuple[str, str | None, int | None]:
    """The host, user and port of one entry of a ProxyJump.

    >>> jump("ada@bastion:2222"), jump("[fe80::1]:22"), jump("ssh://bastion")
    (('bastion', 'ada', 2222), ('fe80::1', None, 22), ('bastion', None, None))
    """
    found = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[([^\]]+)\]|([^:]+))(?::([0-9]+))?/?", hop)
    if found is None:
        raise ValueError(f"ProxyJump '{hop}' is not [user@]host[:port]")
    user, bracketed, bare, port = found.groups()
    return bracketed or bare, user, int(port) if port else None


def text(user: str | None = None, port: int | None = None) -> str:
    """The configuration as one text: what the ResourceSpec says, the user's file, the system's. The first word wins.

    >>> print(text(user="ada", port=2222).splitlines()[:3])
    ['Host *', 'User ada', 'Port 2222']
    """
    lines = ["Host *"]
    lines += [f"User {user}"] if user else []
    lines += [f"Port {port}"] if port else []
    for file in (Path(USER).expanduser(), Path(SYSTEM)):
        lines += ["Host *", *_lines(file, _MAX_INCLUDES)]
    return "\n".join(lines) + "\n"


def _lines(file: Path, depth: int) -> list[str]:
    """The lines of a file, each ``Include`` replaced by what it includes: paramiko does not know the word."""
    try:
        written = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    lines, block = [], "Host *"
    for line in written:
        words = line.replace("=", " ", 1).split(maxsplit=1)
        keyword = words[0].lower() if words else ""
        if keyword == "include" and len(words) == 2 and depth:
            for pattern in shlex.split(words[1], comments=True):
                # Relative to the directory of the user's file, or of the system's for the system's.
                place = os.path.join(Path(SYSTEM if file.is_relative_to("/etc") else USER).parent, pattern)
                for included in sorted(glob.glob(os.path.expanduser(place))):
                    lines += _lines(Path(included), depth - 1)
            # What follows belongs to the block in which the word stood.
            lines.append(block)
            continue
        if keyword in ("host", "match"):
            block = line
        lines.append(line)
    return lines
