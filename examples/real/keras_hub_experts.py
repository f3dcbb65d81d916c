"""A Mixtral of KerasHub is trained from scratch: its router adds a loss that keeps the experts equally busy."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub
import numpy as np
from keras_hub.src.models.mixtral import mixtral_decoder

from autodist_core import ResourceSpec, whole_batch
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the model, and return it, and its history."""
    keras.utils.set_random_seed(0)
    # How busy an expert is, the whole batch decides. The mask is left out, since no sentence here has padding.
    of_replica = mixtral_decoder.compute_load_balancing_loss
    mixtral_decoder.compute_load_balancing_loss = lambda router_logits, num_experts, top_k, attention_mask: of_replica(
        whole_batch(router_logits), num_experts, top_k
    )
    backbone = keras_hub.models.MixtralBackbone(
        vocabulary_size=20, num_layers=1, num_query_heads=2, hidden_dim=16, intermediate_dim=32,
        num_key_value_heads=2, num_experts=4, top_k=2,
    )  # fmt: skip
    model = keras_hub.models.MixtralCausalLM(backbone, preprocessor=None)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    tokens = np.random.default_rng(0).integers(0, 20, (32, 9))
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((32, 8), "int32")}
    fit = DistributedModel(model, ResourceSpec.local(cpus=2)).fit if distributed else model.fit
    history = fit(x, tokens[:, 1:], batch_size=8, epochs=2, verbose=0)
    mixtral_decoder.compute_load_balancing_loss = of_replica
    return model, history.history


if __name__ == "__main__":
    print(train()[1])
