"""Train Keras 3 models over several devices with the methods they already have."""

from autodist_keras import callbacks
from autodist_keras.model import DistributedModel
from autodist_keras.valueless import without_values

__all__ = ["DistributedModel", "callbacks", "without_values"]
