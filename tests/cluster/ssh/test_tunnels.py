"""With tunnels, everything between hosts goes through ssh, and the numbers are the same."""

import keras
import pytest

from autodist_core import LaunchError, ResourceSpec
from autodist_core.cluster.chief.launch import launch
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE
from tests.support.training import plain

pytestmark = pytest.mark.usefixtures("float64", "known_hosts", "nothing_stays")


def connections(host) -> set[tuple[str, str]]:
    """What goes out of a host: its own port or "any", and the other end's address."""
    lines = host.output("ss", "-Htn", "state", "established").splitlines()
    ends = [[end.rpartition(":") for end in line.split()[-2:]] for line in lines]
    return {
        (own[2] if own[2] == "22" else "any", other[0].strip("[]").removeprefix("::ffff:"))
        for own, other in ends if "127.0.0.1" not in other[0]
    }


class Look(keras.callbacks.Callback):
    """Notes in the middle of training what each host is connected to."""

    def __init__(self, hosts) -> None:
        super().__init__()
        self.hosts = hosts
        self.seen: dict = {}

    def on_train_end(self, logs=None):
        self.seen = {host.address: connections(host) for host in self.hosts}


def test_training_through_tunnels_uses_nothing_but_ssh(network):
    look = Look(network.hosts[1:])
    with OverHosts(DENSE, network.spec(cpus=[1, 2, 1]), tunnelled=True) as hosts:
        for builder in ("AllReduce", "PS"):
            assert_equally_trained(plain(DENSE), hosts.train("adam", builder, callbacks=[look]))
            assert look.seen == {host.address: {("22", network.hosts[0].address)} for host in network.hosts[1:]}


def test_a_server_without_forwarding_is_named(network):
    host = network.hosts[2]
    no_entrance = f"{host.address}: its ssh server forwards no ports.*AllowTcpForwarding"
    no_exit = rf"its tunnel to {host.address} does not work: [\w ]*\. The ssh servers of both .*AllowTcpForwarding"
    for directions, problem in {"no": no_entrance, "remote": no_exit}.items():
        with host.listening_otherwise(AllowTcpForwarding=directions), pytest.raises(LaunchError, match=problem):
            launch(ResourceSpec(network.spec()), tunnelled=True)
