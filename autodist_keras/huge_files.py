"""Load a model from Keras's files while no huge variable is in the memory of the program as a whole.

In: a `with` block that loads weights. Out: in the block, Keras's reader gives huge values as arrays on the disk, which
it fills by rows (`runtime.room`). All other values, and files that are not as Keras writes them, are read by Keras.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py  # type: ignore[import-untyped]

from autodist_core.runtime import HUGE_BYTES, fill, room
from autodist_keras.seams import H5_STORE

_PART_BYTES = 1 << 25


@contextmanager
def huge_values_on_disk() -> Iterator[None]:
    """Let Keras read huge values by rows. The docstring of the module says more.

    >>> import keras, tempfile
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder, huge_values_on_disk():
    ...     model.save_weights(f"{folder}/model.weights.h5")
    ...     model.load_weights(f"{folder}/model.weights.h5")
    """
    store = H5_STORE.get()
    by_keras = store.__getitem__

    def read(self: Any, key: str) -> Any:
        group = self._h5_entry_group
        found = group.get(key)
        if not _is_plain(found) or not isinstance(group.get(key, getlink=True), h5py.HardLink):
            return by_keras(self, key)
        value = room(found.shape, found.dtype)
        rows = max(1, _PART_BYTES * len(value) // value.nbytes)
        for begin in range(0, len(value), rows):
            fill(value[begin : begin + rows], found[begin : begin + rows])
        value.flags.writeable = False
        return value

    store.__getitem__ = read
    try:
        yield
    finally:
        store.__getitem__ = by_keras


def _is_plain(found: Any) -> bool:
    """Whether these are the bytes of a huge array, one after the other in this file."""
    is_huge = isinstance(found, h5py.Dataset) and found.nbytes >= HUGE_BYTES
    return is_huge and "dtype" not in found.attrs and found.id.get_offset() is not None
