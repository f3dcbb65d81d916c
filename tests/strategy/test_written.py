"""A strategy as text: only the names of builders and literal values are read, and nothing is evaluated."""

import pytest

from autodist_core.errors import StrategyError
from autodist_core.strategy import BUILDERS, AllReduce, RandomAxisPartitionAR, StrategyBuilder
from autodist_core.strategy.written import read_builder, written

REFUSED = {
    "AllReduce(": "strategy 'AllReduce(' cannot be read. Expected Name(option=value, ...), such as AllReduce(...).",
    "os.getcwd()": "strategy 'os.getcwd()' cannot be read. Expected Name(option=value, ...), such as AllReduce(...).",
    "PS()+1": "strategy 'PS()+1' cannot be read. Expected Name(option=value, ...), such as PS(...).",
    "PS(True)": "strategy 'PS(True)': every option is given by its name. Expected Name(option=value, ...), such as "
    "PS(...).",
    "PS(**{})": "strategy 'PS(**{})': every option is given by its name. Expected Name(option=value, ...), such as "
    "PS(...).",
    "PS(staleness=int(1))": "strategy 'PS(staleness=int(1))': the value of option 'staleness' is no literal. Expected "
    "a number, a text in quotes, True, False or None.",
    "PS(sync=True, sync=False)": "strategy 'PS(sync=True, sync=False)': option 'sync' is given twice.",
    "PS(stalenes=1)": "PS(stalenes=1): unknown option. Did you mean 'staleness'? Known: local_proxy_variable, sync, "
    "staleness.",
    "PSS(staleness=1)": "unknown strategy 'PSS'. Did you mean 'PS'? Known: " + ", ".join(BUILDERS) + ".",
    "AllReduce(chunk_size='x')": "AllReduce(chunk_size='x'): chunk_size is an integer. Received: str.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_strategy_is_refused(text: str):
    with pytest.raises(StrategyError) as refusal:
        read_builder(text)
    assert str(refusal.value) == REFUSED[text]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_is_read_as_it_is_written(name: str):
    builder = read_builder(name)
    assert written(builder) == name and read_builder(f" {name}() ") == builder


def test_options_that_differ_from_their_defaults_are_written():
    for builder in (AllReduce(chunk_size=1, bucket_bytes=100), RandomAxisPartitionAR(chunk_size=3, seed=5)):
        assert read_builder(written(builder)) == builder
    assert written(AllReduce(128, compressor="HorovodCompressor")) == "AllReduce(compressor='HorovodCompressor')"

    class OnFirst(StrategyBuilder):
        def build(self, graph_item, resource_spec):
            raise NotImplementedError

    assert written(OnFirst()) == "OnFirst"
