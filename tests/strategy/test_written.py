"""A strategy as text: only the names of builders and literal values are read, and nothing is evaluated."""

import pytest

from autodist_core.errors import StrategyError
from autodist_core.strategy import BUILDERS, AllReduce, RandomAxisPartitionAR, StrategyBuilder
from autodist_core.strategy.written import read_builder, written


def unreadable(text, name):
    return (
        f"strategy {text!r} cannot be read. Expected Name(option=value, ...), such as {name}(...), with each option "
        "once. A value is a number, a text in quotes, True, False or None."
    )


UNREADABLE = {
    "AllReduce(": "AllReduce", "os.getcwd()": "AllReduce", "PS()+1": "PS", "PS(True)": "PS", "PS(**{})": "PS",
    "PS(staleness=int(1))": "PS", "PS(sync=True, sync=False)": "PS",
}  # fmt: skip
REFUSED = {
    **{text: unreadable(text, name) for text, name in UNREADABLE.items()},
    "PS(stalenes=1)": "PS(stalenes=1): unknown option. Did you mean 'staleness'? Known: local_proxy_variable, sync, "
    "staleness.",
    "PSS(staleness=1)": "unknown strategy 'PSS'. Did you mean 'PS'? Known: " + ", ".join(BUILDERS) + ".",
    "AllReduce(chunk_size='x')": "AllReduce(chunk_size='x'): chunk_size is an integer from 1 to 2147483647.",
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
