"""Callbacks for `DistributedModel.fit`, beside Keras's own.

>>> from autodist_keras import callbacks
>>> callbacks.Resume("folder").every
'auto'
"""

from autodist_keras.callbacks.resume import Resume

__all__ = ["Resume"]
