"""A RetinaNet of KerasHub is trained from scratch: its loss is divided by the number of boxes in the batch."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub
import numpy as np

from autodist_core import ResourceSpec, whole_batch
from autodist_keras import DistributedModel, synchronize_batch_norm


class Detector(keras_hub.models.RetinaNetObjectDetector):
    """The loss of the whole batch, on every replica."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, **kwargs: Any) -> Any:
        """KerasHub's loss, which writes into the dictionary of the boxes: this one is a copy."""
        x, y, y_pred = whole_batch((x, dict(y), y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, **kwargs)


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the detector, and return it, and its history."""
    keras.utils.set_random_seed(0)
    encoder = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64, 8, 8],
        stackwise_num_blocks=[1, 1, 1], stackwise_num_strides=[1, 2, 2], block_type="basic_block",
    )  # fmt: skip
    backbone = keras_hub.models.RetinaNetBackbone(encoder, min_level=3, max_level=4, use_p5=False)
    detector = Detector(backbone, num_classes=3, bounding_box_format="xyxy", pre_logits_num_conv_layers=1)
    synchronize_batch_norm(detector)
    # KerasHub's own losses are sums, which would be added up over the replicas.
    focal = keras.losses.BinaryFocalCrossentropy(from_logits=True)
    detector.compile("adam", box_loss=keras.losses.Huber(), classification_loss=focal)

    rng = np.random.default_rng(0)
    images, corners = rng.uniform(size=(16, 48, 48, 3)), rng.uniform(0, 16, (16, 4, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(16, 32, corners.shape)], axis=-1)
    objects = {"boxes": boxes, "labels": rng.integers(0, 3, (16, 4))}
    fit = DistributedModel(detector, ResourceSpec.local(cpus=2)).fit if distributed else detector.fit
    history = fit(images, objects, batch_size=8, epochs=2, verbose=0)
    return detector, history.history


if __name__ == "__main__":
    print(train()[1])
