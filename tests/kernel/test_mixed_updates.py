"""Updates that mix variables, or stand in conditionals around all of them: equal to one device wherever they live."""

from collections.abc import Callable

import keras
import pytest

from tests.support.graphs import training_graph
from tests.support.models import even_data, trained_by
from tests.support.training import assert_equal_training, compiled, plain


class NormScaled(keras.optimizers.SGD):
    """Divides by a moving average of the norm of all gradients: state that depends on all variables at once."""

    def build(self, variables):
        super().build(variables)
        self.norm = self.add_variable((), name="norm", initializer="ones")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        total = sum(keras.ops.sum(keras.ops.square(gradient)) for gradient in grads)
        self.norm.assign(0.5 * self.norm + 0.5 * keras.ops.sqrt(total))
        grads = [gradient / self.norm for gradient in grads]
        super()._backend_update_step(grads, trainable_variables, learning_rate)


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05, name="adam"),
    "accumulation": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, name="sgd"),
    "accumulation, clipped": lambda: keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=3, global_clipnorm=0.05, name="adam"
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, name="adam"), initial_scale=4.0, dynamic_growth_steps=2, name="scaled"
    ),
    "loss scale around accumulation": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, clipnorm=0.05, name="adam"), 4.0, 2, name="scaled"
    ),
    "norm of everything": lambda: NormScaled(0.1, momentum=0.5, name="scaled"),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.02, name="sgd"),
    "average": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2, name="adam"
    ),
}


REFERENCES = {name: trained_by(make) for name, make in OPTIMIZERS.items()}


WAYS = {
    "all-reduce": {}, "one server": {"strategy": "PS"}, "both": {"strategy": "Alternating", "replicas": 3},
    "one memory": {"share_memory": True},
}  # fmt: skip


@pytest.mark.quick(
    "all-reduce-global_clipnorm", "all-reduce-loss scale", "both-average", "one memory-accumulation, clipped"
)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_an_update_equals_one_devices(way: str, name: str):
    assert_equal_training(REFERENCES[name], **WAYS[way])


@pytest.mark.quick("norm of everything-False")
@pytest.mark.parametrize("name, fused_kernels", [(name, turn % 2 == 0) for turn, name in enumerate(OPTIMIZERS)])
def test_two_servers_equal_one_device(name: str, fused_kernels: bool):
    assert_equal_training(REFERENCES[name], strategy="PSLoadBalancing", fused_kernels=fused_kernels)


def test_the_expectations_are_not_those_of_a_plain_optimizer():
    """Else equality would say nothing about clipping, accumulating and averaging."""
    adam = plain(trained_by(lambda: keras.optimizers.Adam(0.01, name="adam")))
    for name in ("global_clipnorm", "accumulation, clipped", "clipvalue", "average"):
        kernel = "small/first/kernel"
        assert abs(plain(REFERENCES[name]).weights[kernel] - adam.weights[kernel]).max() > 1e-5


def test_a_global_norm_sends_one_number_a_variable():
    """No owner is sent the gradients of variables that it does not hold."""
    data, model = even_data(), compiled(REFERENCES["global_clipnorm"])
    graph = training_graph(model, data.x, data.y, "PSLoadBalancing")
    reduced = [node.name for node in graph.graph_def.node if node.name.startswith("reduced/") and node.op == "AddN"]
    assert len(reduced) == len(model.trainable_variables)
    assert {name.split("/")[1] for name in reduced} == {"server_localhost_CPU_0", "server_localhost_CPU_1"}
