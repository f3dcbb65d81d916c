"""TensorBoardPlan writes the plan once; the event files are read back as TensorBoard does."""

from pathlib import Path

import keras
import numpy as np
import pytest
from tensorflow.compat.v1.train import summary_iterator

from autodist_keras.callbacks import TensorBoardPlan
from tests.support.models import stacked
from tests.support.training import distributed


def test_the_plan_is_a_text(tmp_path: Path):
    model, callback = stacked(keras.Input((3,)), keras.layers.Dense(2)), TensorBoardPlan(tmp_path)
    with distributed(model, "PartitionedPS") as front:
        for _ in range(2):
            front.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=4, verbose=0, callbacks=[callback])
        plan = front.plan()
    (path,) = (tmp_path / "plan").iterdir()
    values = [event.summary.value[0] for event in summary_iterator(str(path)) if not event.file_version]
    assert [each.tag for each in values] == ["1 plan", "2 placement"]
    assert {each.metadata.plugin_data.plugin_name for each in values} == {"text"}
    text, placement = (each.tensor.string_val[0].decode() for each in values)
    assert text.startswith("```\n") and "dense/kernel" in text
    assert all(line in text for line in plan.splitlines()[5:])
    assert "owner server_localhost_CPU_1" in placement


def test_only_a_fit_of_a_distributed_model_has_a_plan(tmp_path: Path):
    model = stacked(keras.Input((3,)), keras.layers.Dense(1))
    with pytest.raises(ValueError, match=r"TensorBoardPlan works with DistributedModel\.fit only"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[TensorBoardPlan(tmp_path)])
    assert not list(tmp_path.iterdir())
