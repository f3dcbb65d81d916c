"""A real Ray cluster on two hosts: its machines train as one device does, and Ray's actors hold the agents."""

import os
import signal
import subprocess
import sys
import tempfile

import keras
import pytest

from autodist_core import LaunchError, NodeLostError, ResourceSpec, ResourceSpecError
from tests.cluster.over_hosts import LONG_TRAININGS, OverHosts
from tests.network.lan import ROOT
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE
from tests.support.training import plain
from tests.support.waiting import until

ray = pytest.importorskip("ray", reason="`make test-packages` installs ray")
pytestmark = [*LONG_TRAININGS, pytest.mark.filterwarnings("ignore")]  # Ray has warnings of its own
HOSTS = 2
STARTED = [*(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=2"),
           "--num-gpus=2", "--object-store-memory=100000000"]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(network):
    """The address of a Ray cluster of two machines with two CPUs each; this process is a driver on the first one."""
    head, other = network.hosts
    # Its sockets lie there, whose names may not be long.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, open(network.directory / "ray", "w") as log:
        port, options = 6390 + network.number, {"stdout": log, "stderr": log}
        options["env"], address = {**os.environ, "PYTHONPATH": str(ROOT)}, f"{head.address}:{port}"
        words = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        started = head.run([*STARTED, *words, f"--node-ip-address={head.address}"], **options)
        until(lambda: port in head.listening())
        other.run([*STARTED, f"--address={address}", f"--node-ip-address={other.address}"], **options)
        ray.init(address=address, log_to_driver=False)
        until(lambda: len(alive()) == 2)
        yield address
        ray.shutdown()
        started.terminate()
        started.wait()


def alive():
    return [node for node in ray.nodes() if node["Alive"]]


def agents(host):
    """What runs of actors and agents on a host."""
    return [pid for pid, words in host.processes() if "autodist_core" in words or "RayAgent" in words]


def all_is_given_back(network):
    free = ray.available_resources()
    return free.get("CPU") == ray.cluster_resources()["CPU"] and not agents(network.hosts[1])


def test_a_program_without_ray_is_told_what_to_call():
    with pytest.raises(ResourceSpecError, match=r"^Call ray.init\(address='auto'\) before ResourceSpec.from_ray"):
        ResourceSpec.from_ray(nodes=2)


def test_two_machines_train_as_one_device_and_nothing_is_left(network, cluster):
    spec = ResourceSpec.from_ray(nodes=2, cpus=2)
    assert [node.address for node in spec.nodes] == [host.address for host in network.hosts]
    for builder in ("PS", "PartitionedAR"):  # after the first, the actors are started anew
        with OverHosts(DENSE, spec) as hosts:
            assert len(hosts.front.resource_spec.replica_devices) == 4
            assert_equally_trained(plain(DENSE, replicas=4), hosts.train("adam", builder))
            assert agents(network.hosts[1])
        until(lambda: all_is_given_back(network))
    spec = ResourceSpec.from_ray(nodes=1)
    OverHosts(DENSE, spec).front.close()
    until(lambda: all_is_given_back(network))


def test_the_error_says_what_there_is_and_what_was_asked_for(network, cluster):
    with pytest.raises(LaunchError) as raised:
        ResourceSpec.from_ray(nodes=2, cpus=3, seconds=1)
    said, wanted = str(raised.value), f"2 machines with 3 CPUs and 0 GPUs each, among them {network.hosts[0].address}"
    assert said.startswith(f"Ray did not reserve {wanted}, within 1 s. There are {{'")
    assert all(f"'{host.address}': '2 CPUs and 2 GPUs'" in said for host in network.hosts)
    assert "}. Free, in all: 4 CPUs and 4 GPUs. Ask for less" in said
    assert all_is_given_back(network)


def test_ray_says_which_gpus_there_are(network, cluster, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    spec = ResourceSpec.from_ray(nodes=2, gpus=2)
    assert [node.gpus for node in spec.nodes] == [(0, 1), (0, 1)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    del spec
    until(lambda: all_is_given_back(network))


def test_the_agents_end_with_a_program_that_is_killed(network, cluster):
    code = f"import ray; ray.init(address='{cluster}'); from autodist_core import ResourceSpec; "
    code += "spec = ResourceSpec.from_ray(nodes=2); print('reserved', flush=True); input()"
    program = network.hosts[0].run([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"reserved\n"
    assert agents(network.hosts[1])
    program.send_signal(signal.SIGKILL)
    until(lambda: all_is_given_back(network))


def test_a_machine_that_is_lost_is_named(network, cluster):
    """The last test: its machine does not come back."""
    lost = network.hosts[1]
    with OverHosts(DENSE, ResourceSpec.from_ray(nodes=2), lost_after=3.0) as hosts:
        hosts.compile("adam", "PS")
        hurt = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch or lost.power_off())
        data = DENSE.data()
        with pytest.raises(NodeLostError, match=f"^{lost.address} was lost during training step 2: no message came"):
            hosts.front.fit(data.x, data.y, batch_size=8, callbacks=[hurt], verbose=0)
