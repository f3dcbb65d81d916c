"""Give the memory of freed values back to the system, where TensorFlow would keep it for later ones.

With oneDNN, TensorFlow takes the memory of large values from a pool of the process that never shrinks. So the memory of
a freed variable counts as this process's, although another process of the machine needs it. This module takes the
freed places of the pool for a moment, tells the system that nobody needs what is in them, and leaves them again.

In: the bytes of each freed value. Out: less resident memory. Without oneDNN nothing is left to give back.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARY = "libtensorflow_cc.so.2"
_UINT8 = 4
"""TensorFlow's number of this type."""
_LEAST_BYTES = 1 << 20


def give_back(sizes: Iterable[int]) -> None:
    """Give back the memory of freed values with these bytes. It may be used again at any time.

    >>> give_back([1 << 20, 1 << 22])
    """
    tensorflow, system = _libraries()
    large = sorted((size for size in sizes if size >= _LEAST_BYTES), reverse=True) if tensorflow else ()
    # All places are taken before the first one is left: another one would be given out twice.
    tensors = []
    for size in large:
        tensors.append(tensorflow.TF_AllocateTensor(_UINT8, (ctypes.c_int64 * 1)(size), 1, size))
        start = tensorflow.TF_TensorData(tensors[-1]) or 0
        if not start:
            break  # the pool has no such place, and each further request would take seconds
        first, last = -(-start // mmap.PAGESIZE), (start + size) // mmap.PAGESIZE
        system.madvise(first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE, mmap.MADV_DONTNEED)
    for tensor in tensors:
        tensorflow.TF_DeleteTensor(tensor)
    if large and (trim := getattr(system, "malloc_trim", None)):  # of the GNU C library
        trim(0)


def while_drawn(sizes: Iterable[int]) -> list[int]:
    """The bytes of pieces of the memory that values took while they were drawn and sent, one after the other.

    A value is in memory four times meanwhile, so that is four times the largest. Small pieces find each free place.

    >>> while_drawn([800, 80])[:2], sum(while_drawn([800, 80]))
    ([100, 100], 3200)
    """
    return [max(sizes, default=0) // 8] * 32


@cache
def _libraries() -> tuple[Any, Any]:
    """TensorFlow's library, which this process has loaded, and that of the system; two times None if there is none."""
    folders = getattr(sys.modules.get("tensorflow"), "__path__", ())
    path = next((path for folder in folders if (path := Path(folder, _LIBRARY)).exists()), None)
    if path is None or not hasattr(mmap, "MADV_DONTNEED"):
        return None, None
    tensorflow, system = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    tensorflow.TF_AllocateTensor.restype = tensorflow.TF_TensorData.restype = ctypes.c_void_p
    tensorflow.TF_AllocateTensor.argtypes = [
        ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_size_t
    ]
    tensorflow.TF_TensorData.argtypes = tensorflow.TF_DeleteTensor.argtypes = [ctypes.c_void_p]
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return tensorflow, system
