"""`autodist doctor` over real hosts with real faults: what it prints, and what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import yaml

from autodist_core import GraphItem, ResourceSpec, Variable
from autodist_core.auto import Auto
from autodist_core.auto.profiles import ClusterProfile
from autodist_core.errors import StrategyError
from tests.network.lan import ROOT
from tests.support.waiting import until

OTHER_TENSORFLOW = "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.19.0\n"


def cluster_file(network, directory, **groups):
    """The spec of all hosts as a file; ``groups`` maps a host's name to what differs in its ssh group."""
    content = network.spec()
    usual = content["ssh"]
    content["ssh"] = {"usual": usual} | {name: usual | changes for name, changes in groups.items()}
    for node, host in zip(content["nodes"][1:], network.hosts[1:], strict=True):
        node["ssh_config"] = host.name if host.name in groups else "usual"
    file = directory / "cluster.yml"
    file.write_text(yaml.safe_dump(content))
    return file


def doctor(network, file, *options, **env):
    """Run the command to its end; addresses in what it printed begin with 10.77.0, whatever the network's number."""
    command = [sys.executable, "-m", "autodist_core", "doctor", str(file), "--seconds", "0.2", *options]
    env = dict(os.environ, HOME=str(network.home), PYTHONPATH=str(ROOT)) | env
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    done.stdout, done.stderr = (
        printed.replace(f"10.77.{network.number}.", "10.77.0.") for printed in (done.stdout, done.stderr)
    )
    return done


def other_tensorflow(host):
    """A directory of the host in which TensorFlow's metadata is another version's."""
    found = host.file("/tmp/other/tensorflow-2.19.0.dist-info")
    found.mkdir(parents=True)
    (found / "METADATA").write_text(OTHER_TENSORFLOW)
    return {"shared_envs": {"PYTHONPATH": f"/tmp/other:{ROOT}"}}


def python_without_packages(host):
    """A Python of the host that finds the standard library only."""
    python = host.file("/tmp/bare/python")
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return {"python_venv": "export PATH=/tmp/bare:$PATH"}


def agents(host):
    """The agents that run there: none should, when the command is over."""
    return [words for _, words in host.processes() if "autodist_core" in words]


def matrix(printed, title):
    """The rows of a matrix: for each address its cells."""
    block = next(block for block in printed.split("\n\n") if block.startswith(title))
    return {words[1]: words[2:] for words in (line.split() for line in block.splitlines()[2:]) if words[0].isdigit()}


@pytest.fixture
def healthy(network, tmp_path):
    for host in network.hosts[1:]:
        host.shape("1gbit")
    yield cluster_file(network, tmp_path)
    for host in network.hosts[1:]:
        host.unshape()


def test_a_healthy_cluster(network, healthy):
    done = doctor(network, healthy)
    assert done.returncode == 0, done.stdout + done.stderr
    addresses = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    table, latencies, bandwidths, ports, verdict = done.stdout.strip().split("\n\n")

    head, *rows = (re.split(r" {2,}", line.strip()) for line in table.splitlines())
    columns = "node, role, ssh, Python, TensorFlow, autodist-keras, GPUs, clock, CPUs, memory free"
    assert head == columns.split(", ")
    python = ".".join(map(str, sys.version_info[:3]))
    for number, (row, address) in enumerate(zip(rows, addresses, strict=True), 1):
        found = dict(zip(["number", *head], row, strict=True))
        assert found["number"] == str(number) and found["node"] == address
        assert found["role"] == ("chief" if number == 1 else "worker")
        assert found["ssh"] == "here" if number == 1 else 0 < float(found["ssh"].removesuffix(" s")) < 10
        assert found["Python"] == python and re.fullmatch(r"2\.\d+\.\d+(rc\d+)?", found["TensorFlow"])
        assert found["GPUs"] == "none asked"
        assert found["clock"] == "-" if number == 1 else abs(float(found["clock"].removesuffix(" s"))) < 1
        assert re.fullmatch(rf"{len(os.sched_getaffinity(0))}, busy [0-9.]+", found["CPUs"])
        free, total = map(float, re.fullmatch(r"([0-9.]+) of ([0-9.]+) GiB", found["memory free"]).groups())
        assert 0 < free < total

    for title, block, extra in (("round trip", latencies, 0), ("Gbit/s", bandwidths, 1)):
        assert block.startswith(title)
        found = matrix(done.stdout, title)
        assert list(found) == addresses
        for position, address in enumerate(addresses):
            assert found[address][:extra] == ["1"] * extra
            cells = found[address][extra:]
            assert cells.pop(position) == "-"
            values = [float(cell) for cell in cells]
            assert all(0 < value < 50 for value in values) if not extra else all(0.5 < value < 1.2 for value in values)
    assert ports.startswith("servers take any free port")
    assert verdict == "all 3 nodes are ready"

    # On a busy machine, the logger says for which of the hosts the chief waits.
    assert [line for line in done.stderr.splitlines() if not line.startswith("autodist: waiting for ")] == [
        "autodist doctor: starting agents here and on 10.77.0.2, 10.77.0.3",
        "autodist doctor: 3 of 3 nodes answer; do they reach each other?",
        "autodist doctor: measuring 6 links in 6 rounds of 0.2 s",
    ]
    assert [agents(host) for host in network.hosts[1:]] == [[], []]


def test_json_and_a_range_of_ports(network, healthy):
    done = doctor(network, healthy, "--json", AUTODIST_PORTS="20000-20003")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ready"] and found["ports"] == [20000, 20003] and found["notes"] == []
    assert [node["chief"] for node in found["nodes"]] == [True, False, False]
    assert all(node["description"]["cpus"] and node["problems"] == [] for node in found["nodes"])
    assert len(found["pairs"]) == 6
    assert all(0 < pair["gbits"] < 1.2 * pair["gbits_wanted"] and not pair["problem"] for pair in found["pairs"])


def test_auto_predicts_with_the_links_that_the_doctor_has_measured(network, healthy):
    """The file states 1 Gbit/s for all hosts, and one of them has a tenth."""
    spec, item = ResourceSpec(healthy), GraphItem((Variable("kernel", (1000, 1000), "float32"),))
    assert Auto().build(item, spec).notes[-1].endswith("20 Gflop/s for a machine, network_bandwidth of the file")
    network.hosts[1].shape("100mbit")
    done = doctor(network, healthy, "--profile")
    written = healthy.with_name("cluster.profile.json")
    assert done.returncode == 0 and f'strategy="auto" uses {written} from now on' in done.stderr
    assert [round(each.bandwidth / 125e6, 1) for each in ClusterProfile.of(spec).machines] == [1.0, 0.1, 1.0]
    assert Auto().build(item, spec).notes[-1].endswith("20 Gflop/s for a machine, links as in cluster.profile.json")
    written.write_text('{"nodes": []}')
    with pytest.raises(StrategyError, match=r"cluster\.profile\.json: the measured .* autodist doctor --profile"):
        Auto().build(item, spec)


def test_what_cannot_be_examined(network, tmp_path):
    file = cluster_file(network, tmp_path)
    done = doctor(network, file, AUTODIST_PORTS="many")
    message = "autodist doctor: AUTODIST_PORTS='many' is not a range of ports such as '20000-20099'.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)
    done = doctor(network, tmp_path / "none.yml")
    assert done.returncode == 1 and "none.yml" in done.stderr and "Traceback" not in done.stderr
    done = doctor(network, file, "--seconds", "0")
    assert done.returncode == 2 and "expected a number of seconds above 0, received '0'" in done.stderr


def test_ports_that_are_taken(network, tmp_path):
    """One port for three nodes is enough, unless a node needs it for something else."""
    taken = "import signal, socket; s = socket.create_server(('', 20007)); print(flush=True); signal.pause()"
    program = network.hosts[2].run([sys.executable, "-c", taken], stdout=subprocess.PIPE)
    program.stdout.readline()
    done = doctor(network, cluster_file(network, tmp_path), AUTODIST_PORTS="20007")
    program.kill()
    program.wait()
    assert done.returncode == 1
    assert "2 of 3 nodes are ready.\n  10.77.0.3: " in done.stdout
    assert "no port is free of 20007: end what listens there, or let AUTODIST_PORTS name others." in done.stdout
    assert matrix(done.stdout, "Gbit/s").keys() == {"10.77.0.1", "10.77.0.2"}
    assert "servers take ports 20007 to 20007 (AUTODIST_PORTS)" in done.stdout


def test_a_chief_that_is_not_this_machine(network, tmp_path):
    """Its user hears of that only, and not of firewalls."""
    file = cluster_file(network, tmp_path)
    content = yaml.safe_load(file.read_text())
    first, second, _ = content["nodes"]
    first["chief"], second["chief"] = False, True
    file.write_text(yaml.safe_dump(content))
    done = doctor(network, file)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", (
        f"autodist doctor: {file}: 'chief: true' is on 10.77.0.2, and this machine, where your program runs, is "
        "10.77.0.1. Move 'chief: true' there, or start the program on 10.77.0.2.\n"
    ))

    first |= {"address": f"10.77.{network.number}.99", "chief": True}
    second["chief"] = False
    file.write_text(yaml.safe_dump(content))
    assert doctor(network, file, AUTODIST_DEADLINES="reach=5").stdout.split("\n\n")[-1] == (
        "2 of 3 nodes are ready.\n"
        "  10.77.0.99: 'chief: true' is on it, and it is no address of this machine, where your program runs. Write "
        "the address of this machine, or start the program there.\n"
    )


def test_every_fault_at_once_and_the_others_are_measured(make_network, tmp_path):
    network = make_network(7)
    _, one, off, slow, bare, other, apart = network.hosts
    odd = {bare.name: python_without_packages(bare), other.name: other_tensorflow(other)}
    file = cluster_file(network, tmp_path, **odd)
    off.power_off()
    slow.shape("100mbit")
    alias = f"10.77.{network.number}.99"
    slow.output("ip", "addr", "add", f"{alias}/24", "dev", slow.interface)
    slow.output("ip", "route", "add", network.hosts[0].address, "dev", slow.interface, "src", alias)
    # Neither of the two hears the other, and both hear the rest.
    one.output("ip", "neigh", "replace", apart.address, "lladdr", "02:ad:00:00:00:00", "dev", one.interface)

    done = doctor(network, file)
    assert done.returncode == 1
    table, latencies, bandwidths, _, notes, verdict = done.stdout.strip().split("\n\n")

    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[1:]]
    assert [row[1] for row in rows] == [f"10.77.0.{number}" for number in range(1, 8)]
    assert [row[3] == "failed" for row in rows] == [False, False, True, False, False, False, False]
    assert [row[4] == "-" for row in rows] == [False, False, True, False, True, False, False]
    assert rows[5][5] == "2.19.0"

    found = matrix(done.stdout, "Gbit/s")
    assert list(found) == [f"10.77.0.{number}" for number in (1, 2, 4, 6, 7)]
    assert found["10.77.0.2"][5] == "no" and found["10.77.0.7"][2] == "no"
    slow_cells = [cell for cell in found["10.77.0.4"][1:] if cell != "-"] + [
        cells[3] for address, cells in found.items() if address != "10.77.0.4"
    ]
    assert len(slow_cells) == 8 and all(cell.endswith("!") and 0.03 < float(cell[:-1]) < 0.13 for cell in slow_cells)
    assert "under half of what the spec says" in bandwidths and "no: cannot be reached" in bandwidths
    assert matrix(done.stdout, "round trip")["10.77.0.2"][4] == "no" and "spec" not in latencies

    assert re.sub(r"0\.1\d*", "0.1", notes).splitlines() == [
        "note: 10.77.0.4 comes to 10.77.0.1 under another address than the spec's: 10.77.0.99.",
        "note: every link of 10.77.0.4 has 0.1 Gbit/s or less, under half of what the spec says (network_bandwidth): "
        "look for what slows that node, or correct the spec.",
    ]

    lines = re.sub(r"on port \d+", "on port N", verdict).splitlines()
    cut = (
        "on port N: no answer within 10 s. Let the firewalls between the nodes pass the ports of AUTODIST_PORTS, or "
        "correct the address."
    )
    version = re.search(r"2\.\d+\.\d+", " ".join(rows[0]))[0]
    assert re.match(r"  10\.77\.0\.3: .*(no route to|no answer from) port 22", lines.pop(2))
    assert lines == [
        "2 of 7 nodes are ready.",
        f"  10.77.0.2: cannot reach 10.77.0.7 {cut}",
        "  10.77.0.5: autodist-keras is not installed for the Python that runs there. Install it there, or name the "
        "environment that has it by 'python_venv' in the node's ssh group.",
        f"  10.77.0.6: TensorFlow 2.19.0 there, {version} on the chief: install the same.",
        f"  10.77.0.7: cannot reach 10.77.0.2 {cut}",
    ]
    assert "autodist doctor: 10.77.0.5: autodist-keras is not installed" in done.stderr
    assert all(agents(host) == [] for host in (one, slow, bare, other, apart))


def test_an_interrupt_ends_it_although_a_node_hangs(network, tmp_path):
    hung, well = network.hosts[1:]
    hung.listener.send_signal(signal.SIGSTOP)
    try:
        command = [sys.executable, "-m", "autodist_core", "doctor", str(cluster_file(network, tmp_path))]
        env = dict(os.environ, HOME=str(network.home), PYTHONPATH=str(ROOT))
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: agents(well))
            process.send_signal(signal.SIGINT)
            # Less than the half minute for which the node that hangs is waited for.
            assert process.wait(20) == 130
            assert process.stderr.read().endswith("autodist doctor: interrupted\n")
    finally:
        hung.listener.send_signal(signal.SIGCONT)
    until(lambda: not agents(well))
