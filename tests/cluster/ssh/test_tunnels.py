"""With tunnels, everything between hosts goes through ssh, and the numbers are the same."""

import keras
import pytest

from autodist_core.errors import LaunchError
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import OverHosts, nothing_left
from tests.conftest import OF_KERAS
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE
from tests.support.training import compiled, plain

pytestmark = [pytest.mark.usefixtures("float64", "known_hosts"), pytest.mark.filterwarnings(OF_KERAS)]


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
    assert nothing_left(network) == []


def test_a_server_without_forwarding_is_named(network):
    host = network.hosts[2]
    with host.listening_otherwise(AllowTcpForwarding="no"):
        model = compiled(DENSE)
        with pytest.raises(LaunchError, match=rf"{host.address}: its ssh server forwards no ports.*AllowTcpForwarding"):
            DistributedModel(model, network.spec(), tunnelled=True).fit(DENSE.data().x, DENSE.data().y, verbose=0)
    assert nothing_left(network) == []
