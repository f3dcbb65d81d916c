"""Callbacks for `DistributedModel.fit`, beside Keras's own.

>>> from autodist_keras import callbacks
>>> callbacks.Resume("folder").every
'auto'
"""

from autodist_keras.callbacks.resume import Resume
from autodist_keras.callbacks.throughput import Throughput
from autodist_keras.callbacks.timeline import Timeline

__all__ = ["Resume", "Throughput", "Timeline"]
