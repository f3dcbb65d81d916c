"""What a kernel wants kept from one step to the next, besides the variables of the captured step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Kept:
    """A variable of the session that a kernel added, with what it starts from: zeros, or numbers drawn for a seed.

    >>> print(Kept("compressor/error/dense/kernel@replica1", "/device:CPU:1", "float32", (784, 128)))
    compressor/error/dense/kernel@replica1 : float32[784,128]
    """

    name: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    seed: str = ""

    def initial(self) -> np.ndarray:
        """The value before the first step; equal seeds give equal numbers, on whatever machine."""
        dtype = tf.as_dtype(self.dtype).as_numpy_dtype
        if not self.seed:
            return np.zeros(self.shape, dtype)
        seed = int.from_bytes(hashlib.sha256(self.seed.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=self.shape).astype(dtype)

    def __str__(self) -> str:
        return f"{self.name} : {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Remembered:
    """A new value of a kept variable: a tensor of the graph, and the occurrence of the update that it goes with."""

    kept: Kept
    value: str
    occurrence: int
