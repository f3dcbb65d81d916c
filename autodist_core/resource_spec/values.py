"""The values that a ResourceSpec consists of: devices, nodes and ssh groups, all frozen."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property

from autodist_core.errors import ResourceSpecError

_HOSTNAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_DEVICE = re.compile(r"(?P<address>\[[^\]]+\]|[^\[\]:]+):(?P<kind>CPU|GPU):(?P<index>[0-9]+)")


def parse_address(text: str) -> str:
    """The canonical form of a hostname, an IPv4 or an IPv6 address; a ValueError says what is wrong with it.

    >>> parse_address("worker-1.example.org"), parse_address("[FE80::0:1]"), parse_address("10.0.0.1")
    ('worker-1.example.org', 'fe80::1', '10.0.0.1')

    An IPv4 address that is mapped to IPv6 is written the same by all versions of Python: 3.12 would give it in hex.

    >>> parse_address("::FFFF:a00:1")
    '::ffff:10.0.0.1'
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    with suppress(ValueError):
        address = ipaddress.ip_address(bare)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(address) if mapped is None else f"::ffff:{mapped}{''.join(str(address).partition('%')[1:])}"
    if re.fullmatch(r"[0-9.]+", bare):
        raise ValueError("is not an IPv4 address: four numbers from 0 to 255, separated by dots")
    if re.fullmatch(r"\[?[^\[\]:]+\]?:[0-9]+", bare) or re.fullmatch(r"\[.*\]:[0-9]+", text):
        raise ValueError("carries a port. Leave it out here; the port of ssh is 'port' in the node's ssh group")
    if not _HOSTNAME.fullmatch(bare):
        raise ValueError("is neither a hostname nor an IPv4 or IPv6 address")
    return bare.lower()


def bracketed(address: str) -> str:
    """An address as it is written before a colon, as of a port: IPv6 addresses stand in brackets.

    >>> bracketed("fd00::1"), bracketed("10.0.0.1")
    ('[fd00::1]', '10.0.0.1')
    """
    return f"[{address}]" if ":" in address else address


def is_loopback(address: str) -> bool:
    """Whether an address means "this machine" on every machine, so that other machines cannot use it.

    >>> [is_loopback(address) for address in ("localhost", "127.0.1.1", "::ffff:127.0.0.1", "10.0.0.1")]
    [True, True, True, False]
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address.split(".")[0].startswith("localhost") or address.endswith(".localhost")
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return parsed.is_loopback or parsed.is_unspecified


@dataclass(frozen=True, order=True)
class DeviceSpec:
    """One device of one node.

    >>> DeviceSpec("10.0.0.1", "GPU", 0).name
    '10.0.0.1:GPU:0'
    >>> DeviceSpec.parse("[fe80::1]:CPU:3")
    DeviceSpec(address='fe80::1', kind='CPU', index=3)
    """

    address: str
    kind: str
    """``"CPU"`` or ``"GPU"``."""
    index: int = 0

    @property
    def name(self) -> str:
        """The name of the device in strategies; an IPv6 address stands in brackets because of its colons."""
        return f"{bracketed(self.address)}:{self.kind}:{self.index}"

    @classmethod
    @cache
    def parse(cls, name: str) -> DeviceSpec:
        """The device that has this name; a ResourceSpecError if it is not the name of a device."""
        found = _DEVICE.fullmatch(name)
        if found is None:
            raise ResourceSpecError(
                f"'{name}' is not a device. A device is '<address>:CPU:<index>' or '<address>:GPU:<index>', "
                "with brackets around an IPv6 address."
            )
        try:
            address = parse_address(found["address"])
        except ValueError as error:
            raise ResourceSpecError(f"device '{name}': address '{found['address']}' {error}.") from None
        return cls(address, found["kind"], int(found["index"]))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class SSHGroup:
    """The settings of ssh for the nodes of one group; ssh's own configuration has those that are not set.

    >>> SSHGroup(username="ada", shared_envs=(("TOKEN", "secret"),))
    SSHGroup(name='default', username='ada', port=None, key_file=None, python_venv='')
    >>> print(SSHGroup(username="ada", shared_envs=(("TOKEN", "secret"),)))
    ssh default: username=ada, shared_envs=TOKEN
    """

    name: str = "default"
    username: str | None = None
    port: int | None = None
    key_file: str | None = None
    """The file of the private key; ``~`` is the user's home."""
    python_venv: str = ""
    """A shell command that activates the Python environment on the node: ``source ~/venv/bin/activate``."""
    shared_envs: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Environment variables for the agents on the nodes, as pairs of name and value."""

    def __str__(self) -> str:
        parts = [
            f"{key}={value}"
            for key, value in vars(self).items()
            if key not in ("name", "shared_envs") and value not in (None, "")
        ]
        # Only the names: the values may be secrets, and printed text ends in logs.
        parts += [f"shared_envs={','.join(key for key, _ in self.shared_envs)}"] if self.shared_envs else []
        return f"ssh {self.name}: {', '.join(parts) or 'as ssh is configured'}"


@dataclass(frozen=True)
class Node:
    """One machine of the cluster: its address, and the devices that take part.

    >>> print(Node("10.0.0.1", chief=True, gpus=(0, 1)))
    10.0.0.1 (chief): cpus [0], gpus [0, 1], 1 Gbit/s
    """

    address: str
    chief: bool = False
    """Whether the user's program runs on this node."""
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = (0,)
    network_bandwidth: float = 1.0
    """The bandwidth of its network, in Gbit/s."""
    ssh_config: str | None = None
    """The name of its ssh group; ``None`` if ssh's own configuration has all settings."""
    agent_port: int | None = None
    """The port at which an agent that a scheduler starts waits for the chief; ``None`` for one started over ssh."""

    @cached_property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Its CPU devices, then its GPUs."""
        of_kinds = {"CPU": self.cpus, "GPU": self.gpus}
        return tuple(DeviceSpec(self.address, kind, index) for kind, known in of_kinds.items() for index in known)

    def __str__(self) -> str:
        parts = [f"cpus {list(self.cpus)}", *([f"gpus {list(self.gpus)}"] if self.gpus else [])]
        parts += [f"{self.network_bandwidth:g} Gbit/s", *([f"ssh {self.ssh_config}"] if self.ssh_config else [])]
        return f"{self.address}{' (chief)' if self.chief else ''}: {', '.join(parts)}"
