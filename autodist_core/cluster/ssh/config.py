"""ssh's own configuration, with the settings of the ResourceSpec in front of it, and what both say of one host.

In: the options that ssh's configuration has for a host, and the ResourceSpec's ssh group. Out: a `Target`.
"""

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

USER, SYSTEM = "~/.ssh/config", "/etc/ssh/ssh_config"
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MAX_INCLUDES = 16

Jumps = tuple[str, ...] | None


@dataclass(frozen=True)
class Target:
    """One ssh server, and how to log in on it.

    >>> target = Target.of("worker", {"hostname": "10.0.0.2", "user": "ada", "port": "2222"}, None, None, None)
    >>> print(target, "at", target.place)
    ada@10.0.0.2:2222 at port 2222 of 10.0.0.2
    """

    name: str
    """The name that the ResourceSpec or a ProxyJump gives it."""
    hostname: str
    port: int
    user: str
    key_file: str | None
    """The private key that the ResourceSpec names; if there is one, no other key is tried."""
    identity_files: tuple[str, ...]
    default_keys: bool
    """Whether `identity_files` are ssh's default places for keys, which need not exist."""
    identities_only: bool
    """Whether keys of the ssh agent that `identity_files` does not name are left out."""
    known_hosts: tuple[Path, ...]
    learns_in: Path
    """The file to which the user adds a new host's key."""
    known_as: tuple[str, ...]
    """The names under which the host's key may be known."""
    proxy_command: str | None
    jumps: tuple[str, ...]
    """The jump hosts on the way, the nearest one first."""
    connect_timeout: float | None
    address_family: str

    @classmethod
    def of(
        cls, name: str, options: Mapping[str, Any], key_file: str | None, other_key: str | None, jumps: Jumps
    ) -> Target:
        """The target of the options that ssh's configuration has for ``name``.

        ``key_file`` and ``jumps`` take the place of these options, and ``other_key`` is tried after their keys.
        """
        # As in ssh, the first of the two options that is written counts, even if its value is "none".
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
        """Where the server listens, in words."""
        return f"port {self.port}" if self.hostname == self.name else f"port {self.port} of {self.hostname}"

    @property
    def accept(self) -> str:
        """The command with which the user accepts the server's key, so that it stands in ``known_hosts``."""
        if self.jumps or self.proxy_command or self.known_as != known_hosts.names(self.hostname, self.port):
            return f"ssh -p {self.port} -l {shlex.quote(self.user)} {self.name} exit"
        return f"ssh-keyscan -p {self.port} {self.hostname} >> {shlex.quote(str(self.learns_in))}"

    def __str__(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}:{self.port}"


def jump(hop: str) -> tuple[str, str | None, int | None]:
    """The host, the user and the port of one entry of a ProxyJump; None for what the entry does not say.

    >>> jump("ada@bastion:2222"), jump("[fe80::1]:22"), jump("ssh://bastion")
    (('bastion', 'ada', 2222), ('fe80::1', None, 22), ('bastion', None, None))
    """
    found = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[([^\]]+)\]|([^:]+))(?::([0-9]+))?/?", hop)
    if found is None:
        raise ValueError(f"ProxyJump '{hop}' is not [user@]host[:port]")
    user, bracketed, bare, port = found.groups()
    return bracketed or bare, user, int(port) if port else None


def text(user: str | None = None, port: int | None = None) -> str:
    """The configuration as one text: the ResourceSpec's settings, the user's file, the system's; first values count.

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
    """The lines of a file, each ``Include`` replaced by the lines of its files: paramiko ignores the keyword."""
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
                # A path is relative to the directory of the user's configuration, or of the system's in the system's.
                place = os.path.join(Path(SYSTEM if file.is_relative_to("/etc") else USER).parent, pattern)
                for included in sorted(glob.glob(os.path.expanduser(place))):
                    lines += _lines(Path(included), depth - 1)
            # The lines after the Include belong to the block in which it stands.
            lines.append(block)
            continue
        if keyword in ("host", "match"):
            block = line
        lines.append(line)
    return lines
