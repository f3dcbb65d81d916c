"""Whether arrays are the same memory, or have the same bits.

In: arrays. Out: a comparison that takes little memory, however large they are.
"""

import numpy as np

_AT_A_TIME = 1 << 22


def same_memory(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same entries of the same memory. An array without memory is never the same.

    >>> array = np.ones(3)
    >>> same_memory(array, array[:]), same_memory(array, array.copy()), same_memory(array, array[1:])
    (True, False, False)
    """
    layout = (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
    return layout and one.nbytes > 0 and one.ctypes.data == other.ctypes.data


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bits.

    >>> same_bits(np.array([np.nan, 0.0]), np.array([np.nan, 0.0])), same_bits(np.array(0.0), np.array(-0.0))
    (True, False)
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if same_memory(one, other):
        return True
    if one.dtype.hasobject:
        return one.tobytes() == other.tobytes()
    words, of_other = _words(one), _words(other)
    # A comparison of all at once would need memory for each word.
    return all(
        np.array_equal(words[start : start + _AT_A_TIME], of_other[start : start + _AT_A_TIME])
        for start in range(0, max(1, words.size), _AT_A_TIME)
    )


def is_zero(array: np.ndarray) -> bool:
    """Whether all bits of an array are zero.

    >>> is_zero(np.zeros(3)), is_zero(np.array([0.0, -0.0]))
    (True, False)
    """
    words = _words(array)
    return not any(words[start : start + _AT_A_TIME].any() for start in range(0, words.size, _AT_A_TIME))


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array as integers, as few as possible: a comparison writes a byte for each."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint64 if flat.nbytes % 8 == 0 else np.uint8)
