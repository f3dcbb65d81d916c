"""TensorBoardPlan writes the plan and the graphs of a step once; the event files are read back as TensorBoard does."""

from pathlib import Path

import keras
import numpy as np
import pytest
from tensorflow.compat.v1.train import summary_iterator
from tensorflow.core.framework.graph_pb2 import GraphDef

from autodist_keras.callbacks import TensorBoardPlan
from tests.support.models import stacked
from tests.support.training import distributed

WIDTH = 3000


def _events(folder: Path) -> dict[str, list]:
    """The events of each run, without the one with the version."""
    found: dict[str, list] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        run = str(path.parent.relative_to(folder))
        found.setdefault(run, []).extend(event for event in summary_iterator(str(path)) if not event.file_version)
    return found


def _graphs(events: dict[str, list]) -> dict[str, GraphDef]:
    """The one graph of each run below `plan`, by the run's name."""
    graphs = {run.removeprefix("plan/"): found for run, found in events.items() if run != "plan"}
    return {name: GraphDef.FromString(event.graph_def) for name, (event,) in graphs.items()}


def _trained(folder: Path, strategy: str, fits: int):
    """The events of some fits of a model with a constant of 24 kB, and the plan."""
    scale = np.linspace(0.5, 1.5, WIDTH)
    model = stacked(keras.Input((WIDTH,)), keras.layers.Lambda(lambda x: x * scale), keras.layers.Dense(2))
    callback = TensorBoardPlan(folder)
    with distributed(model, strategy) as front:
        for _ in range(fits):
            front.fit(np.ones((8, WIDTH)), np.ones((8, 2)), batch_size=4, verbose=0, callbacks=[callback])
        return _events(folder), front.plan()


def test_the_plan_is_a_text_and_both_ends_are_graphs(tmp_path: Path):
    events, plan = _trained(tmp_path, "PartitionedPS", fits=2)
    assert [event.summary.value[0].tag for event in events["plan"]] == ["1 plan", "2 placement"]
    metadata = {event.summary.value[0].metadata.plugin_data.plugin_name for event in events["plan"]}
    text, placement = (event.summary.value[0].tensor.string_val[0].decode() for event in events["plan"])
    assert metadata == {"text"} and text.startswith("```\n")
    assert "dense/kernel" in text and all(line in text for line in plan.splitlines()[5:])
    assert "owner server_localhost_CPU_1" in placement

    graphs = _graphs(events)
    assert [*graphs] == ["captured", "final"]
    nodes = {name: {node.name: node.device for node in graph.node} for name, graph in graphs.items()}
    assert not any(name.startswith("replica1/") for name in nodes["captured"])
    assert any(name.startswith("replica1/") for name in nodes["final"])
    assert {*nodes["final"].values()} == {"/device:CPU:0", "/device:CPU:1"}
    # The constant is there, without its value.
    assert all(node.ByteSize() < 8 * WIDTH for graph in graphs.values() for node in graph.node)


def test_only_a_fit_of_a_distributed_model_has_a_plan(tmp_path: Path):
    model = stacked(keras.Input((3,)), keras.layers.Dense(1))
    with pytest.raises(ValueError, match=r"TensorBoardPlan works with DistributedModel\.fit only"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[TensorBoardPlan(tmp_path)])
    assert not list(tmp_path.iterdir())
