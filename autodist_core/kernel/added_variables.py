"""Variables that kernels add to a step: they keep a tensor from one step to the next.

In: nothing; compressors make these values. Out: variables for the session to create, to which the kernel `Update`
writes. For a compressor with error feedback, on each replica::

    compressor/error/dense/kernel@replica1 : float32[784,128]
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class AddedVariable:
    """A variable of the session that a kernel added. It starts from zeros, or from random numbers if it has a seed.

    >>> print(AddedVariable("compressor/error/dense/kernel@replica1", "/device:CPU:1", "float32", (784, 128)))
    compressor/error/dense/kernel@replica1 : float32[784,128]
    """

    name: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    seed: str = ""

    def initial(self) -> np.ndarray:
        """Return the value before the first step. Equal seeds give equal numbers on every machine.

        >>> AddedVariable("compressor/error/b@replica0", "/device:CPU:0", "float32", (2,)).initial()
        array([0., 0.], dtype=float32)
        """
        dtype = tf.as_dtype(self.dtype).as_numpy_dtype
        if not self.seed:
            return np.zeros(self.shape, dtype)
        seed = int.from_bytes(hashlib.sha256(self.seed.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=self.shape).astype(dtype)

    def __str__(self) -> str:
        return f"{self.name} : {self.dtype}[{','.join(map(str, self.shape))}]"
