"""A cluster that cannot start says so once, names every host, cause and remedy, in time, and leaves nothing behind."""

import contextlib
import platform
import re
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import keras
import numpy as np
import pytest

from autodist_core import LaunchError, ResourceSpecError
from autodist_core.cluster.agents.in_parallel import end_agents
from autodist_core.cluster.chief.cluster import Cluster
from autodist_core.cluster.chief.launch import launch
from autodist_core.cluster.doctor import examination
from autodist_keras import DistributedModel
from tests.cluster.leftovers import assert_nothing_came, running
from tests.cluster.refusals import refusal, spec, tool
from tests.network.lan import ROOT
from tests.network.namespaces import NetworkError
from tests.support.models import stacked
from tests.support.waiting import HANGS, until

OTHER_PYTHON = next(
    (
        file for file in sorted(Path(sys.base_prefix).parent.glob("3.1[1-9]*/bin/python3"))
        if not file.parents[1].name.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    ),
    None,
)
"""Where interpreters of several versions stand side by side, one with another minor version."""


@pytest.fixture(scope="module")
def network(make_network):
    return make_network(3, shared=[OTHER_PYTHON.parents[1]] if OTHER_PYTHON else [])


@pytest.fixture(autouse=True)
def home(network, monkeypatch, tmp_path):
    """A home for this test alone, and deadlines that a test can wait for."""
    shutil.copytree(network.home, tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / "home"


def test_two_hosts_are_wrong_each_in_its_own_way(network, home):
    """A key that the first does not take, and a port of the second on which nobody listens."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "key"], check=True)
    one, two = (host.address for host in network.hosts[1:])
    denied, closed = refusal(network, host1={"key_file": str(home / "key")}, host2={"port": 2222})
    assert denied.startswith(f"{one}: port 22 does not let 'root' in. Tried: key {home}/key ED25519 SHA256:")
    assert closed.startswith(f"{two}: port 2222 is closed: the machine answers, and no ssh server listens there.")


def test_a_host_that_answers_late_is_awaited_by_name(network, caplog):
    """The wait is said, and ends well as soon as the host can be reached."""
    host, launched = network.hosts[1], []
    starting = threading.Thread(target=lambda: launched.append(launch(spec(network, host1={}))), daemon=True)
    with host.cut_off():
        starting.start()
        said = until(lambda: re.findall("waiting for .*", caplog.text))
    starting.join(HANGS)
    end_agents(launched[0].agents)
    assert re.fullmatch(rf"waiting for 1 of 2 machines to start an agent: {host.address} \([2-4] s of 30\)", said[0])


def test_a_host_without_python(network):
    host = network.hosts[1]
    tool(host, "dd", "/bin/dd")
    problem, *log = refusal(network, host1={"python_venv": "export PATH=/tmp/tools"})
    assert problem == (
        f"{host.address}: there is no Python: say how to get one by 'python_venv' in the node's ssh group; the last "
        "lines of its log:"
    )
    assert len(log) == 1 and "python: not found" in log[0]


@pytest.mark.parametrize("command", ["source ~/nowhere/bin/activate", "conda activate python3"])
def test_a_host_whose_environment_is_not_activated(network, command):
    problem, *log = refusal(network, host1={"python_venv": command})
    assert problem == (
        f"{network.hosts[1].address}: 'python_venv' of its ssh group is '{command}', and that command fails there. "
        "Write the command that activates the environment, such as 'source ~/venv/bin/activate'; the last lines of "
        "its log:"
    )
    assert len(log) == 1 and ("not found" in log[0] or "No such file" in log[0])


TOOLS = {"python_venv": "export PATH=/tmp/tools:$PATH"}


@pytest.mark.parametrize("isolated, missing, install", [
    (["-I"], "autodist-keras", "it"), ([], r"(?!autodist)\w+", "autodist-keras with its dependencies"),
])  # fmt: skip
def test_a_host_without_the_package_or_what_it_needs(network, isolated, missing, install):
    host = network.hosts[1]
    tool(host, "python", sys._base_executable, "-S", *isolated)
    [problem] = refusal(network, host1=TOOLS)
    assert re.fullmatch(
        rf"{host.address}: {missing} is not installed for the Python that runs there\. Install {install} there, or "
        r"name the environment that has it by 'python_venv' in the node's ssh group\.",
        problem,
    )


def test_a_limit_of_this_machine_is_named(network, monkeypatch):
    monkeypatch.setattr(examination, "start_agent", lambda *_: Path("/dev/null/too many").read_text())
    assert "starts no ssh or agent (Not a directory): raise its limits" in refusal(network, host1={"port": 22})[0]


def test_an_agent_that_never_answers(network, monkeypatch):
    monkeypatch.setenv("AUTODIST_DEADLINES", "answer=3")
    tool(network.hosts[1], "python", "sleep 30; true")
    assert refusal(network, host1=TOOLS) == [
        f"{network.hosts[1].address}: its agent did not answer 'describe' within 3 s: the machine hangs, or the "
        "network is down."
    ]
    for shell, words in {"exit 3": "~/.bashrc there ends the login", "cat": "~/.bashrc there keeps the login"}.items():
        with network.hosts[1].listening_otherwise(ForceCommand=shell):
            assert words in refusal(network, host1={"port": 22})[0]


def test_another_tensorflow_where_the_login_is_talkative(network):
    host = network.hosts[1]
    venv = "echo Welcome; printf 'Have a nice day'; " + network.spec()["ssh"]["python_venv"]
    file = host.file("/tmp/other/tensorflow-9.9.9.dist-info/METADATA")
    file.parent.mkdir(parents=True)
    file.write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 9.9.9\n")
    [problem] = refusal(network, host1={"python_venv": venv, "shared_envs": {"PYTHONPATH": f"/tmp/other:{ROOT}"}})
    chief = metadata.version("tensorflow")
    assert problem == f"{host.address}: TensorFlow 9.9.9 there, {chief} on the chief: install the same."


@pytest.mark.skipif(OTHER_PYTHON is None, reason="no other Python from 3.11 on stands beside this one")
def test_another_python(network):
    host = network.hosts[1]
    tool(host, "python", OTHER_PYTHON)
    packages = Path(pytest.__file__).parents[1]
    [problem, *_] = refusal(network, host1=TOOLS | {"shared_envs": {"PYTHONPATH": f"{ROOT}:{packages}"}})
    there = rf"{host.address}: Python 3\.\d+\.\d+ there, {platform.python_version()} on the chief: "
    assert re.match(there + "the minor versions must be equal", problem)


def test_two_hosts_that_do_not_reach_each_other(network, monkeypatch):
    monkeypatch.setenv("AUTODIST_DEADLINES", "reach=1")
    _, one, two = network.hosts
    # What is sent there goes to a network card that is in no machine.
    one.output("ip", "neigh", "replace", two.address, "dev", "eth0", "lladdr", "02:00:00:00:00:99", "nud", "permanent")
    try:
        problems = refusal(network, host1={}, host2={})
    finally:
        one.output("ip", "neigh", "del", two.address, "dev", "eth0")
    assert [re.sub(r"port \d+", "port N", problem) for problem in problems] == [
        f"{here.address}: cannot reach {there.address} on port N: no answer within 1 s. Let the firewalls between the "
        "nodes pass the ports of AUTODIST_PORTS, or correct the address."
        for here, there in ((one, two), (two, one))
    ]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("AUTODIST_PORTS", "many", "^AUTODIST_PORTS='many' is not a range of ports"),
        ("AUTODIST_DEADLINES", "connect=soon", "^AUTODIST_DEADLINES='connect=soon': 'connect=soon' is not one of "),
        ("chief", 1, "^the resource spec: 'chief: true' is on {1}, and this machine, where your program runs, is {0}. "
         "Move 'chief: true' there, or start the program on {1}.$"),
    ],
)
def test_what_this_machine_alone_can_tell_is_refused_before_the_loop_begins(
    network, monkeypatch, capsys, name, value, message
):
    before, content = running(network), network.spec()
    addresses = [host.address for host in network.hosts]
    if name == "chief":
        for position, node in enumerate(content["nodes"]):
            node["chief"] = position == value
    else:
        monkeypatch.setenv(name, value)
    model = stacked(keras.Input((3,)), keras.layers.Dense(1))
    with DistributedModel(model, content) as front:
        for loop in (front.fit, front.evaluate):
            with pytest.raises((LaunchError, ResourceSpecError), match=message.format(*addresses)):
                loop(np.ones((4, 3)), np.ones((4, 1)))
    assert capsys.readouterr().out == ""
    assert_nothing_came(before, network)


SLOW = """
import ctypes, sys
ctypes.PyDLL(None).sleep(3)  # nothing else of Python runs meanwhile, as while a large library is loaded
sys.path.remove("/tmp/slow")
del sys.modules["numpy"]
import numpy
"""


def test_a_disk_that_is_full_and_one_from_which_tensorflow_is_slow_to_load(make_network, monkeypatch):
    network = make_network(2, disk="4m")
    monkeypatch.setenv("HOME", str(network.home))
    monkeypatch.setenv("AUTODIST_DEADLINES", "answer=2, reach=1")
    host = network.hosts[1]
    host.file("/tmp/slow").mkdir()
    host.file("/tmp/slow/numpy.py").write_text(SLOW)
    with contextlib.suppress(NetworkError):
        host.output("dd", "if=/dev/zero", "of=/tmp/full")
    before = running(network)
    Cluster.start(spec(network, host1={"shared_envs": {"PYTHONPATH": f"/tmp/slow:{ROOT}"}})).close()
    assert_nothing_came(before, network)
