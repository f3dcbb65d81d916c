"""The start of an agent: it starts again, once, with huge pages, unless its node has settings of its own."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from autodist_core.cluster.protocol.messages import AGENT_MODULE, receive

OURS, OWN = f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={2 * os.cpu_count()}", "glibc.malloc.check=0"


@pytest.mark.parametrize("given, used", [(None, OURS), ("", ""), (OWN, OWN), ("taken away", OURS)])
def test_an_agent_uses_huge_pages_and_few_heaps_unless_its_node_has_settings(tmp_path, given, used):
    env = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if given == "taken away":  # as newer C libraries do in a process with more rights than its user
        (tmp_path / "sitecustomize.py").write_text("import os\nos.environ.pop('GLIBC_TUNABLES', None)\n")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), env.get("PYTHONPATH", "")]))
    elif given is not None:
        env["GLIBC_TUNABLES"] = given
    command = [sys.executable, "-X", "utf8", "-m", AGENT_MODULE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as agent:
        assert select.select([agent.stdout], [], [], 20)[0], "the agent did not answer"
        assert next(iter(receive(agent.stdout)))["pid"] == agent.pid
        # The C library ends each setting of its variable with a NUL.
        environment = Path(f"/proc/{agent.pid}/environ").read_text().replace("\0", ":")
        words = Path(f"/proc/{agent.pid}/cmdline").read_text().split("\0")
        agent.kill()
    assert f":GLIBC_TUNABLES={used}:" in f":{environment}"
    assert words[1:5] == ["-X", "utf8", "-m", AGENT_MODULE]
