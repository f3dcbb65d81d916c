"""Hosts on which something is wrong, and the one error that a cluster over them begins and ends with."""

import time

import pytest

from autodist_core import LaunchError, ResourceSpec
from autodist_core.cluster.chief.cluster import Cluster
from tests.cluster.leftovers import assert_nothing_came, running
from tests.support.waiting import HANGS


def spec(network, **groups):
    """Host 0 as the chief, and the hosts named, each with what is special in its ssh group."""
    hosts = [network.hosts[0], *(network.hosts[int(name[-1])] for name in groups)]
    whole = network.spec(hosts=hosts)
    common = whole["ssh"]
    for node, name in zip(whole["nodes"][1:], groups, strict=True):
        node["ssh_config"] = name
    whole["ssh"] = {name: common | special for name, special in groups.items()}
    return ResourceSpec(whole)


def refusal(network, **groups):
    """The one error, without its first and last line, which are always the same."""
    before = running(network)
    start = time.monotonic()
    with pytest.raises(LaunchError) as raised:
        Cluster.start(spec(network, **groups)).close()
    assert time.monotonic() - start < HANGS
    assert_nothing_came(before, network)
    first, *problems, last = str(raised.value).splitlines()
    count = len(groups) + 1
    assert first == f"{count - len(raised.value.hosts)} of {count} nodes are ready."
    assert last == "Run 'autodist doctor' with the same file for a full report."
    assert "Traceback" not in str(raised.value)
    return [problem.removeprefix("  ") for problem in problems]


def tool(host, name, *words):
    """A command of the host in a directory that holds nothing else."""
    file = host.file(f"/tmp/tools/{name}")
    file.parent.mkdir(exist_ok=True)
    file.write_text("#!/bin/sh\nexec " + " ".join(map(str, words)) + ' "$@"\n')
    file.chmod(0o755)
