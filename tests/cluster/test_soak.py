"""Many short fits in one process: nothing grows, here or on the hosts."""

import gc
import os
import threading
from pathlib import Path

import keras
import pytest

from autodist_keras import DistributedModel
from tests.cluster.hurting import agents
from tests.cluster.over_hosts import OverHosts, nothing_left
from tests.support.compare import assert_equally_trained, assert_same
from tests.support.models import DENSE, dense_data
from tests.support.training import compiled, train_plain, trained
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("collecting")

WARM, MORE = 20, 60
EPOCHS = 75
MEGABYTES = 15
"""What allocators may still take for themselves after the first fits; a step's batch kept each time would be more."""


@pytest.fixture
def collecting(collected):
    """Garbage is collected as in any program, for it would count as growth."""
    gc.enable()


def resident(pid) -> float:
    """Megabytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_here() -> dict[str, int]:
    """What this process has open."""
    return {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}


def sizes(network) -> dict[str, float]:
    """What must not grow: of this process, and of the agents."""
    remote = {host.name: [pid for pid, _ in host.processes()] for host in network.hosts[1:]}
    found = {**open_here(), "memory": resident("self")}
    for name, pids in remote.items():
        found |= {
            f"{name} processes": len(pids), f"{name} memory": sum(map(resident, pids)),
            f"{name} threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        }
    return found


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float]]:
    """What has become more than it may."""
    return {
        name: (before[name], size) for name, size in after.items()
        if size - before[name] > (MEGABYTES if "memory" in name else 2)
    }


def test_hundreds_of_fits_leave_everything_as_it_was(network, known_hosts):
    data = dense_data(24)
    with OverHosts(DENSE, network.pair()) as hosts:
        hosts.compile("adam", "AllReduce")
        before = {}
        for count in range(WARM + MORE):
            hosts.front.fit(data.x, data.y, batch_size=8, verbose=0)
            if count + 1 == WARM:
                before = sizes(network)
        after = sizes(network)
    assert grown(before, after) == {}


def test_clusters_that_come_and_go_leave_nothing(network, known_hosts):
    data = dense_data(24)
    counts = []
    for _ in range(3):
        with OverHosts(DENSE, network.pair()) as hosts:
            hosts.compile("adam", "PS")
            hosts.front.fit(data.x, data.y, batch_size=8, verbose=0)
        assert nothing_left(network) == []
        counts.append(open_here())
    # What was told to end may still be ending.
    until(lambda: all(open_here()[what] <= count for what, count in counts[0].items()))


@pytest.mark.usefixtures("float64", "known_hosts")
def test_the_agents_of_a_front_that_nobody_has_any_more_end_and_its_model_is_trained(network):
    """As when a notebook's cell that makes a DistributedModel is run again."""
    data = dense_data(24)
    alone, model = compiled(DENSE), compiled(DENSE)
    DistributedModel(model, network.pair(), "PartitionedPS").fit(data.x, data.y, batch_size=8, shuffle=False, verbose=0)
    gc.collect()
    until(lambda: not agents(network.hosts[1]))
    alone.fit(data.x, data.y, batch_size=8, shuffle=False, verbose=0)
    assert_same(trained(alone).state, trained(model).state)


@pytest.mark.usefixtures("float64")
def test_many_agents_train_for_long_as_one_device(make_network, monkeypatch):
    """The processes of all hosts share the cores, so a step waits until each of them has had its turn."""
    count = 12
    network = make_network(count)
    monkeypatch.setenv("HOME", str(network.home))
    data, options = dense_data(3 * count + 1), {"batch_size": count + 3, "epochs": EPOCHS}
    expected = train_plain(DENSE, optimizer="sgd", data=data, **options)
    with OverHosts(DENSE, network.spec()) as hosts:
        for builder in ("AllReduce", "PSLoadBalancing"):
            seen: list[dict[str, float]] = []

            def look(epoch: int, logs: object, seen: list[dict[str, float]] = seen) -> None:
                if epoch in (EPOCHS // 3, EPOCHS - 1):
                    seen.append(sizes(network))

            callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=look)]
            assert_equally_trained(expected, hosts.train("sgd", builder, data, callbacks=callbacks, **options))
            assert grown(*seen) == {}
    assert nothing_left(network) == []
