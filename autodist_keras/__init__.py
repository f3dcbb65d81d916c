"""Train Keras 3 models over several devices with the methods they already have."""

from autodist_keras import callbacks
from autodist_keras.capture.batch_norm import synchronize_batch_norm
from autodist_keras.capture.build_ahead import without_values
from autodist_keras.model import DistributedModel

__all__ = ["DistributedModel", "callbacks", "synchronize_batch_norm", "without_values"]
