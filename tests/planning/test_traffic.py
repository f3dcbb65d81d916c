"""What hosts send to each other, run and keep for one step is pinned: each message or operation more takes time."""

import sys
from pathlib import Path

import pytest

from autodist_core.strategy import AllReduce
from tests.planning import goldens

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODELS = ("one_layer", "mlp", "resnet", "tables")
STRATEGIES = {
    "AllReduce": "AllReduce", "AllReduce, gradients": AllReduce(factor_rows=0), "PS": "PS",
    "PartitionedPS": "PartitionedPS",
}  # fmt: skip


@pytest.mark.quick("one_layer", "tables")
@pytest.mark.parametrize("model", MODELS)
def test_the_messages_of_a_step_over_two_hosts(model, monkeypatch):
    """The benchmarks count them in the graph. Their models are seeded nowhere: only shapes count here."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from growth import captured, measured
    from traffic import row, traffic

    item = captured(model)
    rows = [row(model, name, traffic(measured(item, built, 2, 1).graph)) for name, built in STRATEGIES.items()]
    for name in ("growth", "options", "traffic", "workloads"):
        sys.modules.pop(name, None)
    goldens.check(f"traffic_{model}", "\n".join(rows))
