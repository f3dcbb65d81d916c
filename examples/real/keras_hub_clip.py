"""A CLIP of KerasHub learns which text belongs to which image: it compares all images with all texts of the batch."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub
import numpy as np

from autodist_core import ResourceSpec, whole_batch
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train both towers, and return the model, and its history."""
    keras.utils.set_random_seed(0)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    clip = keras_hub.models.CLIPBackbone(
        keras_hub.models.CLIPVisionEncoder(patch_size=4, image_shape=(8, 8, 3), **sizes),
        keras_hub.models.CLIPTextEncoder(vocabulary_size=20, embedding_dim=16, max_sequence_length=4, **sizes),
        projection_dim=8,
    )

    # Each replica scores its own images with the batch's texts, and its own texts with the batch's images.
    compare = clip.clip_head.call
    clip.clip_head.call = lambda images, texts: (
        compare(images, whole_batch(texts))[0],
        compare(whole_batch(images), texts)[1],
    )
    contrast = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    clip.compile(keras.optimizers.SGD(0.1), {"vision_logits": contrast, "text_logits": contrast})

    rng = np.random.default_rng(0)
    pairs = {"images": rng.random((32, 8, 8, 3)), "token_ids": rng.integers(0, 20, (32, 4))}
    places = np.tile(np.arange(8), 4)  # the label of a pair is its place in its batch
    labels = {"vision_logits": places, "text_logits": places}
    fit = DistributedModel(clip, ResourceSpec.local(cpus=2)).fit if distributed else clip.fit
    history = fit(pairs, labels, batch_size=8, shuffle=False, epochs=2, verbose=0)
    return clip, history.history


if __name__ == "__main__":
    print(train()[1])
