"""What a DistributedModel is set to is checked when it is set, and counts from the next call on."""

import inspect
from dataclasses import MISSING, fields

import keras
import pytest

from autodist_core import AutoDist, ResourceSpec
from autodist_core.errors import ResourceSpecError, SessionError, StrategyError
from autodist_core.strategy import PS, AllReduce, Strategy
from autodist_core.training import Settings
from autodist_keras import DistributedModel
from tests.support.compare import assert_same, named
from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, compiled, distributed


@pytest.mark.parametrize("front", [DistributedModel, AutoDist])
def test_a_front_has_the_defaults_of_settings(front: type):
    parameters = inspect.signature(front).parameters
    defaults = {field.name: field.default for field in fields(Settings) if field.default is not MISSING}
    shown = {name: parameters[name].default for name in defaults if name in parameters}
    assert shown == {name: default for name, default in defaults.items() if name in shown}
    assert {"share_memory", "on_failure", "lost_after", "tunnelled", "backup_every"} <= shown.keys()


@pytest.mark.parametrize("value", ["False", "no", 0, 1, []], ids=repr)
@pytest.mark.parametrize("name", ["share_memory", "fused_kernels"])
def test_a_choice_is_true_false_or_none(name: str, value):
    message = f"{name}={value!r}: {name} is True, False or None. Received: {type(value).__name__}."
    with pytest.raises(StrategyError) as caught:
        DistributedModel(compiled(DENSE), ResourceSpec.local(cpus=2), **{name: value})
    assert str(caught.value) == message
    with distributed(compiled(DENSE)) as front:
        before = getattr(front, name)
        with pytest.raises(StrategyError) as caught:
            setattr(front, name, value)
        assert str(caught.value) == message and getattr(front, name) is before


@pytest.mark.parametrize("name, least", [("lost_after", 0.1), ("backup_every", 0)])
@pytest.mark.parametrize("value", [-1, "5", True, float("nan"), float("inf")], ids=repr)
def test_a_time_is_a_number_of_seconds(name: str, least: float, value):
    with pytest.raises(ResourceSpecError) as caught:
        DistributedModel(compiled(DENSE), ResourceSpec.local(cpus=2), **{name: value})
    assert str(caught.value) == f"{name}={value!r}: expected a number of seconds, from {least} to 31622400."


@pytest.mark.parametrize("value, shown", [
    ("AllReduce", "'AllReduce'"), (PS(), "PS(local_proxy_variable=False, sync=True, staleness=0)"), (PS, "PS"),
    (Strategy(), "<Strategy .*: 0 variables, 0 replicas>"),
], ids=["name", "builder", "class", "strategy"])  # fmt: skip
def test_a_strategy_in_the_place_of_the_cluster(value, shown: str):
    with pytest.raises(ResourceSpecError) as caught:
        DistributedModel(compiled(DENSE), value)
    caught.match(r"the second argument is the cluster .* and the strategy is the third: strategy=")
    assert caught.match(shown.replace("(", r"\(").replace(")", r"\)"))


def test_a_file_may_be_called_like_a_strategy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PS").write_text("nodes: [{address: localhost, cpus: 3}]")
    assert "3 replicas" in repr(DistributedModel(compiled(DENSE), "PS"))


@pytest.mark.parametrize("name, meant", [
    ("stratgy", "strategy"), ("Strategy", "strategy"), ("share_memmory", "share_memory"),
    ("fuse_kernels", "fused_kernels"), ("resource_specs", "resource_spec"),
])  # fmt: skip
def test_a_misspelt_setting_is_not_the_models(name: str, meant: str):
    model = compiled(DENSE)
    with distributed(model) as front:
        with pytest.raises(AttributeError, match=rf"no setting '{name}'. Did you mean '{meant}'\?.*dm.model.{name}"):
            setattr(front, name, None)
        assert not hasattr(model, name)


OTHERS = {"stratgy": "theirs", "stage": 3, "memory": (4,), "_strategy": 5}


def test_other_attributes_are_set_on_the_model():
    model = compiled(DENSE)
    model.stratgy = "mine"
    with distributed(model) as front:
        for name, value in OTHERS.items():
            setattr(front, name, value)
    assert {name: getattr(model, name) for name in OTHERS} == OTHERS


CHANGES = {
    "share_memory": (True, lambda front: "the replicas share one copy of the weights" in front.plan()),
    "fused_kernels": (False, lambda front: "ResourceApplyAdam" not in front.plan()),
    "strategy": (AllReduce(), lambda front: "all_reduce" in front.plan()),
    "resource_spec": (ResourceSpec.local(cpus=3), lambda front: "3 replicas" in front.plan()),
}


@pytest.mark.quick("strategy")
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_is_changed_after_a_fit_counts(name: str):
    value, counts = CHANGES[name]
    data, model, once = even_data(), compiled(DENSE), compiled(DENSE)
    with distributed(model, strategy="PS") as front:
        front.fit(data.x, data.y, epochs=1, **QUIET)
        assert not counts(front)
        setattr(front, name, value)
        front.fit(data.x, data.y, epochs=1, **QUIET)
        assert counts(front)
    for _ in range(2):
        once.fit(data.x, data.y, epochs=1, **QUIET)
    assert_same(named(once.weights), named(model.weights))


def test_no_setting_is_changed_while_a_model_trains():
    data, refused = even_data(), []
    with distributed(compiled(DENSE), strategy="PS") as front:
        before = {name: getattr(front, name) for name in CHANGES}

        class Changes(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                for name, (value, _) in CHANGES.items():
                    try:
                        setattr(front, name, value)
                    except SessionError:
                        refused.append(name)
                front.strategy = CHANGES["strategy"][0]

        with pytest.raises(SessionError, match="change its settings afterwards"):
            front.fit(data.x, data.y, callbacks=[Changes()], **QUIET)
        assert refused == list(CHANGES)
        assert all(getattr(front, name) is value for name, value in before.items())


@pytest.mark.quick("on_train_batch_end-wrapper")
@pytest.mark.parametrize("who", ["wrapper", "model"])
@pytest.mark.parametrize("event", ["on_train_begin", "on_train_batch_end", "on_test_batch_end"])
def test_nobody_compiles_a_model_while_it_trains(who: str, event: str):
    """Keras's own `compile` would take the running step function away."""
    data, model, untouched = even_data(), compiled(DENSE), compiled(DENSE)
    optimizer, refusals = model.optimizer, []
    with distributed(model, strategy="PS") as front:
        compiles = {"wrapper": front, "model": model}[who]

        def refused(batch=None, logs=None):
            with pytest.raises(SessionError) as refusal:
                compiles.compile("adam", "mae")
            refusals.append(str(refusal.value))

        callback = keras.callbacks.LambdaCallback()
        setattr(callback, event, refused)
        options = {**QUIET, "validation_data": (data.x, data.y)}
        actual = front.fit(data.x, data.y, callbacks=[callback], **options).history
        assert model.optimizer is optimizer and "compile" not in vars(model)
    assert set(refusals) == {"this DistributedModel is training: compile, close or change its settings afterwards."}
    assert actual.keys() == untouched.fit(data.x, data.y, **options).history.keys()
    assert_same(named(untouched.weights), named(model.weights))
    model.compile("adam", "mse")
    assert model.optimizer is not optimizer
