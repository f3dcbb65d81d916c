"""The start of an agent: it starts again, once, with huge pages, unless its node has settings of its own."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autodist_core.cluster.protocol.messages import AGENT_MODULE, receive

TAKEN_AWAY = "import os\nos.environ.pop('GLIBC_TUNABLES', None)\n"
"""What newer C libraries do in a process with more rights than its user."""


@pytest.fixture
def environment_of():
    """The environment with which an agent runs that was started with these variables, and with these options."""
    started: list[subprocess.Popen[bytes]] = []

    def environment(options=(), **env):
        without = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        started.append(agent := subprocess.Popen(
            [sys.executable, *options, "-m", AGENT_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=without | env,
        ))  # fmt: skip
        assert select.select([agent.stdout], [], [], 20)[0], "the agent did not answer"
        assert next(iter(receive(agent.stdout)))["pid"] == agent.pid
        found = Path(f"/proc/{agent.pid}")
        words = (word.decode().partition("=") for word in (found / "environ").read_bytes().split(b"\0"))
        return {name: value for name, _, value in words}, (found / "cmdline").read_text().split("\0")

    yield environment
    for agent in started:
        agent.send_signal(signal.SIGKILL)
        agent.communicate()


def test_an_agent_uses_huge_pages_and_keeps_the_options_of_its_python(environment_of):
    environment, command = environment_of(["-X", "utf8"])
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert command[1:5] == ["-X", "utf8", "-m", AGENT_MODULE]


@pytest.mark.parametrize("own", ["", "glibc.malloc.check=0"])
def test_settings_of_the_node_stay(environment_of, own):
    environment, _ = environment_of(GLIBC_TUNABLES=own)
    assert environment["GLIBC_TUNABLES"] == own


def test_an_agent_whose_settings_are_taken_away_starts_again_once(environment_of, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(TAKEN_AWAY)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    environment, _ = environment_of(PYTHONPATH=path)
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
