"""The grammar of ``cluster.yml``: from its YAML to nodes and ssh groups, and an error for everything else.

::

    nodes:                        # at least one
      - address: 10.0.0.1         # a hostname, an IPv4 or an IPv6 address
        chief: true               # on one node: where the user's program runs; a single node may leave it out
        gpus: [0, 1]              # indices, or a number: 2 is [0, 1]; default none
        cpus: [0]                 # the same; default [0]
        network_bandwidth: 10     # Gbit/s; default 1
        ssh_config: workers       # the name of a group below; may be left out if there is one group only
    ssh:                          # one flat group like this one, or named groups: {workers: {username: ...}, ...}
      username: ubuntu
      port: 22
      key_file: ~/.ssh/id_ed25519
      python_venv: source ~/venv/bin/activate
      shared_envs: {LD_LIBRARY_PATH: /usr/local/cuda/lib64}
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from autodist_core.errors import ResourceSpecError, amount, did_you_mean, nearest
from autodist_core.resource_spec.values import Node, SSHGroup, is_loopback, parse_address

_TOP = ("nodes", "ssh")
_NODE = ("address", "chief", "gpus", "cpus", "network_bandwidth", "ssh_config")
_SSH = ("username", "port", "key_file", "python_venv", "shared_envs")
_DEFAULT_GROUP = "default"
_MOST_DEVICES = 4096
"""The limit for the devices of one kind on one node: far more than any machine has."""
_MOST_GBIT = 1_000_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a key that occurs twice; the standard one silently keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key_node, _ in node.value:
            if keys.count(key_node.value) > 1:
                problem = f"the key '{key_node.value}' occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """The content of a YAML file; a ResourceSpecError says why there is none.

    >>> load(Path("/missing/cluster.yml"))
    Traceback (most recent call last):
    autodist_core.errors.ResourceSpecError: /missing/cluster.yml: there is no such file (looked in /missing).
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader: it makes plain values only
    except FileNotFoundError:
        # The endings of all names are alike, and would make any two short names similar.
        names = {other.stem: other.name for other in sorted(path.parent.glob("*.y*ml"))}
        close = nearest(path.stem, names)
        near = f" Did you mean '{names[close]}'?" if close is not None else ""
        raise ResourceSpecError(f"{path}: there is no such file (looked in {path.parent.resolve()}).{near}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ResourceSpecError(f"{path}{where}: this is not valid YAML: {problem}. Correct that line.") from None
    except RecursionError:
        raise ResourceSpecError(f"{path} is nested too deeply to be a cluster. Write it as the README shows.") from None
    except (OSError, ValueError, KeyError, OverflowError) as error:
        # No path or no text, an impossible date, or a value that does not fit its tag, such as !!int.
        raise ResourceSpecError(
            f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}. Name a file that may be read "
            "and is YAML in UTF-8. Put text in quotes there, and leave tags (!!) out."
        ) from None


def parse(content: Any, source: str) -> tuple[tuple[Node, ...], tuple[SSHGroup, ...]]:
    """The nodes and the ssh groups of a parsed YAML file; ``source`` is the file's name for errors.

    >>> nodes, groups = parse({"nodes": [{"address": "10.0.0.1", "gpus": 2}]}, "cluster.yml")
    >>> print(nodes[0])
    10.0.0.1 (chief): cpus [0], gpus [0, 1], 1 Gbit/s
    """
    spec = _Reader(source).mapping(content, _TOP, "the file" if isinstance(content, Mapping) else "")
    groups = _groups(spec.get("ssh"), source)
    listed = spec.get("nodes")
    if not isinstance(listed, list | tuple) or not listed:
        got = "nothing" if listed is None or listed == [] else _shown(listed)
        raise ResourceSpecError(
            f"{source}: 'nodes' must list at least one node, each with an 'address'. Received: {got}."
        )
    nodes = [_node(item, position, len(listed), groups, source) for position, item in enumerate(listed, 1)]
    _check_addresses(nodes, source)
    chiefs = [node.address for node in nodes if node.chief]
    if len(chiefs) != 1:
        named = ", ".join(chiefs or [node.address for node in nodes])
        raise ResourceSpecError(
            f"{source}: {len(chiefs)} of {amount(len(nodes), 'node says', 'nodes say')} 'chief: true' ({named}). "
            f"Mark the one where your program runs{', and only that one' if chiefs else ''}."
        )
    return tuple(nodes), tuple(groups.values())


def _shown(value: Any) -> str:
    """A value and its type, as an error shows it."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


class _Reader:
    """Reads the values of one node, group or file with their types; its errors name whose value is wrong."""

    def __init__(self, whose: str) -> None:
        self.whose = whose

    def fail(self, key: str, value: Any, wanted: str) -> NoReturn:
        raise ResourceSpecError(f"{self.whose}: '{key}' must be {wanted}. Received: {_shown(value)}.")

    def mapping(self, value: Any, known: Iterable[str], what: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            got = "nothing" if value is None else _shown(value)
            raise ResourceSpecError(
                f"{self.whose}: expected a mapping with the keys {', '.join(known)}. Received: {got}."
            )
        for key in value:
            if key not in known:
                hint = did_you_mean(str(key), known)
                raise ResourceSpecError(
                    f"{self.whose}: unknown key '{key}' in {what}.{hint} Known: {', '.join(known)}."
                )
        return value

    def text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self.fail(key, value, "text that is not empty; put it in quotes if YAML takes it for something else")
        return value.strip()

    def indices(self, key: str, value: Any) -> tuple[int, ...]:
        listed = range(value) if type(value) is int and 0 <= value <= _MOST_DEVICES else value
        if (
            not isinstance(listed, list | tuple | range)
            or not all(type(index) is int and 0 <= index < _MOST_DEVICES for index in listed)
            or len(set(listed)) < len(listed)
        ):
            wanted = f"a list of different device indices such as [0, 1], each below {_MOST_DEVICES}"
            self.fail(key, value, f"{wanted}, or their number such as 2")
        return tuple(listed)


def _node(item: Any, position: int, count: int, groups: Mapping[str, SSHGroup], source: str) -> Node:
    reader = _Reader(f"{source}, node {position}")
    mapping = reader.mapping(item, _NODE, "a node")
    if mapping.get("address") is None:
        raise ResourceSpecError(f"{reader.whose}: 'address' is missing. Add the hostname or IP address of the machine.")
    written = reader.text("address", mapping["address"])
    try:
        address = parse_address(written)
    except ValueError as error:
        raise ResourceSpecError(f"{reader.whose}: 'address': '{written}' {error}.") from None
    reader.whose = f"{source}, node {position} ({address})"
    # A key without a value, such as `gpus:`, reads as None and stands for the default.
    given = {key: value for key, value in mapping.items() if value is not None}
    chief = given.get("chief", count == 1)
    if not isinstance(chief, bool):
        reader.fail("chief", chief, "true or false")
    cpus = reader.indices("cpus", given.get("cpus", (0,)))
    if not cpus:
        reader.fail("cpus", given["cpus"], "at least one device; leave the key out for [0]")
    bandwidth = given.get("network_bandwidth", 1)
    if isinstance(bandwidth, bool) or not isinstance(bandwidth, int | float) or not 0 < bandwidth <= _MOST_GBIT:
        reader.fail("network_bandwidth", bandwidth, f"a number of Gbit/s greater than 0, and {_MOST_GBIT} at most")
    group = reader.text("ssh_config", given["ssh_config"]) if "ssh_config" in given else None
    if group is not None and group not in groups:
        remedy = f"Known: {', '.join(groups)}." if groups else "Add it under 'ssh:'."
        raise ResourceSpecError(
            f"{reader.whose}: 'ssh_config': there is no group '{group}'.{did_you_mean(group, groups)} {remedy}"
        )
    if group is None and len(groups) == 1:
        group = next(iter(groups))
    if group is None and groups and not chief:
        raise ResourceSpecError(
            f"{reader.whose}: 'ssh_config' is missing, and 'ssh' holds several groups. "
            f"Name one of: {', '.join(groups)}."
        )
    return Node(address, chief, reader.indices("gpus", given.get("gpus", ())), cpus, float(bandwidth), group)


def _check_addresses(nodes: list[Node], source: str) -> None:
    first: dict[str, int] = {}
    for position, node in enumerate(nodes, 1):
        if node.address in first:
            raise ResourceSpecError(
                f"{source}, node {position} ({node.address}): 'address' is that of node {first[node.address]} too. "
                "Write one node for each machine, with all its devices."
            )
        first[node.address] = position
        if len(nodes) > 1 and is_loopback(node.address):
            raise ResourceSpecError(
                f"{source}, node {position} ({node.address}): 'address' means this machine on every machine. "
                f"With {len(nodes)} nodes, write the address under which the others reach it."
            )


def _groups(content: Any, source: str) -> dict[str, SSHGroup]:
    if content is None:
        return {}
    reader = _Reader(f"{source}, ssh")
    if not isinstance(content, Mapping) or not content:
        reader.mapping(content or None, _SSH, "")
    # The values of named groups are mappings. In a flat group, shared_envs is a mapping too, so its keys are looked at.
    if all(isinstance(value, Mapping | None) for value in content.values()) and not set(content) & set(_SSH):
        return {str(name): _group(value, str(name), f"{source}, ssh group '{name}'") for name, value in content.items()}
    return {_DEFAULT_GROUP: _group(content, _DEFAULT_GROUP, reader.whose)}


def _group(content: Any, name: str, whose: str) -> SSHGroup:
    reader = _Reader(whose)
    if content is None:
        raise ResourceSpecError(f"{whose}: it is empty. Add one of the keys {', '.join(_SSH)}, or leave the group out.")
    given = {key: value for key, value in reader.mapping(content, _SSH, "an ssh group").items() if value is not None}
    port = given.get("port")
    if port is not None and (type(port) is not int or not 0 < port < 65536):
        reader.fail("port", port, "an integer from 1 to 65535")
    envs = given.get("shared_envs", {})
    if not isinstance(envs, Mapping) or not all(isinstance(value, str | int | float) for value in envs.values()):
        reader.fail("shared_envs", envs, "a mapping from the names of environment variables to their values")
    for key, value in envs.items():
        if not _VARIABLE.fullmatch(str(key)):
            reader.fail("shared_envs", key, "a mapping whose keys are names of environment variables such as CUDA_HOME")
        if isinstance(value, bool) or "\0" in str(value):
            reader.fail(f"shared_envs.{key}", value, "text or a number; put it in quotes")
    if str(given.get("username", "")).startswith("-"):
        reader.fail("username", given["username"], "the name of a user there, which begins with no dash")
    return SSHGroup(
        name=name,
        port=port,
        shared_envs=tuple((str(key), str(value)) for key, value in envs.items()),
        **{key: reader.text(key, given[key]) for key in ("username", "key_file", "python_venv") if key in given},
    )
