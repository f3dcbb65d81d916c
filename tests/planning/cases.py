"""The models and clusters that planning is tested on: descriptions, since planning needs no weights and no machines."""

from itertools import pairwise

from autodist_core import GraphItem, ResourceSpec, Variable
from autodist_core.strategy import BUILDERS
from autodist_core.strategy.parallax import Default


def cnn():
    """The network of the original getting-started example: one convolution, one very large kernel."""
    return GraphItem(
        (
            Variable("conv2d/kernel", (3, 3, 1, 32), "float32"),
            Variable("conv2d/bias", (32,), "float32"),
            Variable("dense/kernel", (5408, 2048), "float32"),
            Variable("dense/bias", (2048,), "float32"),
            Variable("dense_1/kernel", (2048, 10), "float32"),
            Variable("dense_1/bias", (10,), "float32"),
            Variable("seed_generator_state", (2,), "uint32", trainable=False, kind="seed"),
            Variable("sgd/iteration", (), "int64", trainable=False, kind="optimizer"),
        )
    )


def mlp():
    """Five layers; one dimension is prime, and one variable is a scalar."""
    widths = (784, 512, 509, 512, 10)
    layers = [
        variable
        for number, (rows, columns) in enumerate(pairwise(widths))
        for variable in (
            Variable(f"dense_{number}/kernel", (rows, columns), "float32"),
            Variable(f"dense_{number}/bias", (columns,), "float32"),
        )
    ]
    return GraphItem((*layers, Variable("temperature", (), "float32")))


def embeddings():
    """Two sparse tables, one with a prime number of rows, and a dense part that both meet in."""
    return GraphItem(
        (
            Variable("users/table", (200_000, 32), "float32", is_sparse=True),
            Variable("items/table", (10_007, 32), "float32", is_sparse=True),
            Variable("shared/kernel", (64, 16), "bfloat16"),
            Variable("shared/bias", (16,), "float64"),
            Variable("score/kernel", (16, 1), "float32"),
        )
    )


MODELS = {"cnn": cnn, "mlp": mlp, "embeddings": embeddings}

CLUSTERS = {
    "one_machine": {"nodes": [{"address": "localhost", "cpus": [0, 1]}]},
    "two_nodes": {
        "nodes": [{"address": "10.0.0.1", "chief": True, "gpus": [0, 1]}, {"address": "10.0.0.2", "gpus": [0, 1]}],
        "ssh": {"username": "ubuntu"},
    },
    "uneven": {
        "nodes": [
            {"address": "head.example.org", "chief": True, "gpus": [0]},
            {"address": "10.0.0.2", "gpus": [0, 1, 2], "network_bandwidth": 10},
            {"address": "fe80::3", "cpus": [0, 1]},
        ]
    },
}


def cluster(name):
    return ResourceSpec(CLUSTERS[name])


def builders():
    """Every builder with its defaults, then the one for whoever names none."""
    return {**{name: builder() for name, builder in BUILDERS.items()}, "default": Default()}
