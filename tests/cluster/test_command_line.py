"""The command `autodist`: its words, its errors, and agents that a scheduler starts with it."""

import configparser
import json
import os
import re
import socket
import struct
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest

from autodist_core import ResourceSpec
from autodist_core.cluster.agents.scheduled_agent import ScheduledAgent
from autodist_core.cluster.doctor.diagnosis import diagnose
from autodist_core.cluster.protocol.handshake import job_secret, shake_hands
from autodist_core.command_line import COMMANDS, main
from autodist_core.errors import LaunchError
from autodist_core.strategy import AllReduce
from autodist_keras import DistributedModel
from tests.network.lan import ROOT
from tests.support.models import stacked
from tests.support.waiting import until

SECRET = "a secret of the job's own"
HEAVY = ("tensorflow", "keras", "autodist_keras")


def autodist(*words, **env):
    """The command in a process of its own, without what this one's environment says of a job."""
    kept = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "AUTODIST_SECRET")}
    command = [sys.executable, "-m", "autodist_core", *words]
    env = kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def tf_config(addresses, index=None, port=8888):
    cluster = {"worker": [f"{address}:{port}" for address in addresses]}
    return json.dumps({"cluster": cluster} | ({} if index is None else {"task": {"type": "worker", "index": index}}))


def test_help_has_one_line_for_each_command():
    done = autodist("--help")
    assert done.returncode == 0 and done.stderr == ""
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^    {name} +{re.escape(line)}$", done.stdout, re.MULTILINE)
    assert autodist("--version").stdout.startswith("autodist-keras ")


@pytest.mark.parametrize(
    "words, said",
    [
        ((), "the following arguments are required: COMMAND"),
        (("docter", "cluster.yml"), "invalid choice: 'docter'"),
        (("doctor",), "the following arguments are required: cluster.yml"),
        (("doctor", "c.yml", "--seconds", "soon"), "--seconds: expected a number of seconds above 0, received 'soon'"),
        (("agent", "--port", "0"), "argument --port: expected a port from 1 to 65535, received '0'"),
        (("agent", "--wait", "-1"), "argument --wait: expected a number of seconds above 0, received '-1'"),
    ],
    ids=" ".join,
)
def test_wrong_usage(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""


def test_the_script_that_is_installed_is_this_one():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.entry_points"]["console_scripts"].strip() == "autodist = autodist_core.command_line:main"


@pytest.mark.parametrize(
    "words, last",
    [("doctor none.yml", ["1 []"]), ("agent", ["1 []"]), ("doctor here.yml", ["the node is ready", "0 []"])],
)
def test_these_commands_do_without_tensorflow(words, last, tmp_path):
    """Neither their import nor an error that they print takes more than a moment, and a doctor works without it too."""
    (tmp_path / "here.yml").write_text("nodes: [{address: localhost}]")
    code = (
        "import sys; from autodist_core.command_line import main; status = main(sys.argv[1:]); "
        f"print(status, [name for name in {HEAVY} if name in sys.modules])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.stdout.splitlines()[-len(last):] == last, done.stderr
    assert done.stderr.startswith(f"autodist {words.split()[0]}: ") and "Traceback" not in done.stderr


def test_a_plan_is_the_saved_models(tmp_path, capsys):
    model = stacked(keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1), optimizer="adam")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    (tmp_path / "cluster.yml").write_text("nodes: [{address: 10.0.0.1, chief: true}, {address: 10.0.0.2}]")
    cluster, saved = str(tmp_path / "cluster.yml"), str(tmp_path / "model.keras")

    chunks = ("--strategy", "AllReduce(chunk_size=1, compressor='HorovodCompressor')")
    lossy = AllReduce(chunk_size=1, compressor="HorovodCompressor")
    for words, strategy in (((), None), (chunks, lossy), (("--strategy", "PS"), "PS")):
        assert main(["plan", cluster, "--model", saved, *words]) == 0
        wanted = DistributedModel(model, cluster, strategy).plan()
        assert capsys.readouterr().out == wanted + "\n"
    assert "ps(10.0.0.1:CPU:0)" in wanted

    (tmp_path / "two.yml").write_text("nodes: [{address: localhost, cpus: [0, 1]}]")
    for words, where in (([], "in shared memory"), (["--no-share-memory"], "ps(localhost:CPU:0)")):
        assert main(["plan", str(tmp_path / "two.yml"), "--model", saved, "--strategy", "PS", *words]) == 0
        assert where in capsys.readouterr().out

    assert main(["plan", cluster, "--model", saved, "--strategy", "PS(stalenes=1)"]) == 1
    assert "unexpected keyword argument 'stalenes'" in capsys.readouterr().err
    assert main(["plan", cluster, "--model", saved, "--strategy", "PartitonedPS"]) == 1
    assert capsys.readouterr().err.startswith("autodist plan: unknown strategy 'PartitonedPS'. Did you mean")
    assert main(["plan", cluster, "--model", "none.keras"]) == 1
    assert capsys.readouterr().err.startswith("autodist plan: none.keras: there is no such file.")
    assert main(["plan", cluster, "--model", "none.keras", "--strategy", "PartitonedPS"]) == 1
    assert "unknown strategy" in capsys.readouterr().err, "what takes no time to find out comes first"
    (tmp_path / "other.keras").write_text("no model")
    assert main(["plan", cluster, "--model", str(tmp_path / "other.keras")]) == 1
    assert "other.keras: this is no .keras file, which is a zip archive, and no .h5 file." in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "zip.keras", "w") as archive:
        archive.writestr("readme.txt", "no model either")
    assert main(["plan", cluster, "--model", str(tmp_path / "zip.keras")]) == 1
    assert "zip.keras: Keras cannot load a model from it (" in capsys.readouterr().err


ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.2")


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "TF_CONFIG is not set, so the port to wait at is not known."),
        ("{", "TF_CONFIG is not JSON"),
        (tf_config(ADDRESSES), "one of: worker 0, worker 1, worker 2. Received: no 'task' with 'type' and 'index'."),
        (tf_config(ADDRESSES, 7), "Received: worker 7."),
        (tf_config(ADDRESSES, 0), "worker 0 is on the chief's machine, 10.0.0.1, and agents wait on the others only."),
        (json.dumps({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}), "has no port in 'b'"),
        (tf_config(ADDRESSES, 1), "AUTODIST_SECRET is not set"),
    ],
)
def test_an_agent_that_cannot_wait_says_why(content, said, monkeypatch, capsys):
    monkeypatch.delenv("AUTODIST_SECRET", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if content is not None:
        monkeypatch.setenv("TF_CONFIG", content)
    assert main(["agent"]) == 1
    printed = capsys.readouterr().err
    assert "autodist agent: " in printed and said in printed and "Traceback" not in printed


def test_one_agent_a_machine_is_enough():
    done = autodist("agent", TF_CONFIG=tf_config(ADDRESSES, 2))
    assert done.returncode == 0 and "another task of this machine is its agent" in done.stderr


def test_agents_of_a_scheduler(network, monkeypatch):
    """Two that know the secret serve a chief, end when it is done, and turn away who does not know it."""
    addresses = [host.address for host in network.hosts]
    started = []
    for index, host in enumerate(network.hosts[1:], 1):
        env = dict(os.environ, TF_CONFIG=tf_config(addresses, index), AUTODIST_SECRET=SECRET, PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "autodist_core", "agent", "--wait", "30", "--linger", "1"]
        started.append(host.run(command, env=env, stderr=subprocess.PIPE, text=True))
    monkeypatch.setenv("TF_CONFIG", tf_config(addresses, 0))
    spec = ResourceSpec.from_tf_config(gpus=0)

    monkeypatch.delenv("AUTODIST_SECRET", raising=False)
    with pytest.raises(LaunchError, match=r"^AUTODIST_SECRET is not set: agents that a scheduler"):
        diagnose(spec, 0.1)

    monkeypatch.setenv("AUTODIST_SECRET", "the secret of another job")
    assert diagnose(spec, 0.1).problems == dict.fromkeys(
        addresses[1:],
        (
            "the program that answers on port 8888 is not an agent of this job: set the same AUTODIST_SECRET on all "
            "machines",
        ),
    )

    monkeypatch.setenv("AUTODIST_SECRET", SECRET)
    report = diagnose(spec, 0.1)
    assert not report.problems and all(pair.gbits for pair in report.pairs) and len(report.pairs) == 6

    for agent in started:
        assert agent.wait(20) == 0
        said = agent.stderr.read()
        agent.stderr.close()
        assert "autodist agent: waiting at port 8888 for the chief." in said
        assert re.search(r"10\.77\.\d+\.1 connected and is not the chief of this job", said)


def test_an_agent_whose_chief_does_not_come_or_whose_port_is_taken(network):
    host = network.hosts[1]
    env = dict(os.environ, AUTODIST_SECRET=SECRET, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "autodist_core", "agent", "--port"]
    waiting = host.run([*command, "8889", "--wait", "2"], env=env, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr.readline() == "autodist agent: waiting at port 8889 for the chief.\n"
    until(lambda: 8889 in host.listening())
    second = host.run([*command, "8889"], env=env, stderr=subprocess.PIPE, text=True)
    _, said = second.communicate(timeout=20)
    assert second.returncode == 1
    assert "autodist agent: port 8889 of this machine cannot be used" in said and "Traceback" not in said
    _, said = waiting.communicate(timeout=20)
    assert waiting.returncode == 1 and "No chief came within 2 s." in said


def test_an_agent_that_is_gone_is_closed_without_an_error(monkeypatch):
    """The system resets the connection of a process that was killed, and a reset connection cannot be shut down."""
    monkeypatch.setenv("AUTODIST_SECRET", SECRET)

    def serve_and_die(listener):
        connection, _ = listener.accept()
        shake_hands(connection, job_secret(), b"agent", b"chief")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        killed = pool.submit(serve_and_die, listener)
        agent = ScheduledAgent(*listener.getsockname(), deadline=10)
        killed.result()
    agent.close()
    assert agent.how_it_ended(0).startswith("its agent ended, or the connection to it")


def test_the_page_of_the_commands_has_every_command(capsys):
    rows = re.findall(r"^\| `autodist (\w+)(.*?)` \| (.*) \|$", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)
    assert [name for name, *_ in rows] == list(COMMANDS)
    for name, *texts in rows:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        usage = capsys.readouterr().out
        assert set(re.findall(r"--[a-z]+", " ".join(texts))) == set(re.findall(r"--[a-z]+", usage)) - {"--help"}, name
