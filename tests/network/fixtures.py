"""Fixtures for tests of any folder; ``tests/conftest.py`` makes them known."""

import os

import pytest

from tests.network import lan


@pytest.fixture(scope="session")
def network_is_possible():
    skip_or_fail(lan.missing())


def skip_or_fail(reason):
    """Skip where no network can be built, but fail where AUTODIST_REQUIRE_NETWORK=1 says that one must be."""
    if reason and os.environ.get("AUTODIST_REQUIRE_NETWORK") == "1":
        pytest.fail(f"AUTODIST_REQUIRE_NETWORK=1, but {reason}.", pytrace=False)
    if reason:
        pytest.skip(f"{reason}.")


@pytest.fixture(scope="module")
def make_network(network_is_possible, tmp_path_factory):
    """``make_network(hosts=3, disk="1g", shared=())``: a network of its own, gone after the module's last test."""
    made = []

    def make(hosts=3, **options):
        made.append(lan.Network(hosts, tmp_path_factory.mktemp("network"), **options))
        return made[-1]

    yield make
    for network in made:
        network.close()


@pytest.fixture(scope="module")
def network(make_network, request):
    """Three hosts, or as many as the module's `HOSTS`, of which host 0 is the test's own process.

    Leave them as you found them: the module shares them.
    """
    return make_network(getattr(request.module, "HOSTS", 3))
