"""Compare two values of a variable bit by bit, so that NaN equals NaN and 0.0 differs from -0.0.

In: two arrays. Out: whether they are the same value. `Backup` finds with it what a session has already, and
`autodist_core.training.life` what was changed on a variable.
"""

import numpy as np


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bits.

    >>> same_bits(np.array([np.nan, 0.0]), np.array([np.nan, 0.0])), same_bits(np.array(0.0), np.array(-0.0))
    (True, False)
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype.hasobject:
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(_words(one), _words(other)))


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array as integers, as few as possible: a comparison writes a byte for each."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint64 if flat.nbytes % 8 == 0 else np.uint8)
