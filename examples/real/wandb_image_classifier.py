"""Weights & Biases follows the training of KerasHub's ResNet, whose batch normalization takes the whole batch."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub
import numpy as np
import wandb
from wandb.integration.keras import WandbMetricsLogger

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel, synchronize_batch_norm


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train a classifier of images, and return it, and the summary of the run."""
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64], stackwise_num_blocks=[1],
        stackwise_num_strides=[1], block_type="basic_block",
    )  # fmt: skip
    model = keras_hub.models.ResNetImageClassifier(backbone, num_classes=2)
    synchronize_batch_norm(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])

    images, labels = np.random.default_rng(0).random((32, 8, 8, 3)), np.tile([0, 1], 16)
    fit = DistributedModel(model, ResourceSpec.local(cpus=2)).fit if distributed else model.fit
    with wandb.init(project="replicas", mode="offline") as run:
        history = fit(images, labels, batch_size=8, epochs=2, verbose=0, callbacks=[WandbMetricsLogger()])
        return model, {**history.history, "in the run": run.summary["epoch/loss"]}


if __name__ == "__main__":
    print(train()[1])
