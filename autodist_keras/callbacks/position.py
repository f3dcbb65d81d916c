"""The position in the data of a `fit`: saved with a state, and found again in another process.

In: the iterators from which Keras's loop takes its batches. Out: a position that `encoding.py` can encode.

- An iterator of tf.data over arrays or a dataset is saved itself: where it is, the epoch's permutation, the buffers of
  `shuffle`. It goes on exactly there.
- Where TensorFlow cannot save it (a generator, a `PyDataset`, Python or unsaved random numbers inside the dataset), the
  same number of batches is taken again and skipped. That is exact if the source gives the same batches again.
"""

from __future__ import annotations

import logging
import random
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.runtime.data_pipelines import draws_while_iterated
from autodist_keras.training.batches import BatchIterator
from autodist_keras.training.kept_data import KeptIterator
from autodist_keras.training.step_functions import feed_of

_IGNORE, _FAIL = 1, 2
"""What TensorFlow does about operations with a state of their own in a dataset that is saved."""

_log = logging.getLogger("autodist")


class Position:
    """Follows the iterators of one `fit`, and brings the first one to a saved position.

    >>> position = Position(np.zeros((6, 1)), shuffle=True)
    >>> iterator = iter(tf.data.Dataset.range(6).shuffle(6, seed=1))
    >>> position.note_iterator(None)
    >>> position.take_over(iterator)
    >>> before = next(iterator)
    >>> position.taken(1)
    >>> saved, rest = position.get(iterator), [int(number) for number in iterator]
    >>> other = iter(tf.data.Dataset.range(6).shuffle(6, seed=1))
    >>> Position(np.zeros((6, 1)), shuffle=True).go_to(saved, other)
    >>> [int(number) for number in other] == rest
    True
    """

    def __init__(self, x: Any, shuffle: Any) -> None:
        self._x = x
        self._shuffle = shuffle
        self._iterator: Any = None
        self._made = self._before = self._taken = 0
        """How many iterators Keras has made, how many it made before the current one, and the latter's batches."""
        self._followed = False
        """Whether the current iterator was brought to a saved position, and no other was made since."""
        self._unstarted: bytes | None = None
        """The iterator of a dataset before its first batch."""
        self._draws: Any = None
        """The states of Python's and numpy's random numbers before the epoch in which the iterator began."""
        self._epoch_draws: Any = None
        self._skips = _is_python(x) or shuffle == "batch"

    @property
    def kind(self) -> str:
        """What sort of data it is."""
        return _kind(self._x)

    def note_iterator(self, dataset: Any) -> None:
        """Note that Keras makes an iterator of this. Not all are used, and each may draw the seeds of a shuffle.

        The first one after an iterator whose saved position was taken up draws the seeds that it would have drawn.
        TensorFlow does not give these back with every position, but with one before the first batch. An iterator that
        draws further seeds on its way goes this way again.
        """
        self._made += 1
        if self._followed:
            self._followed = False
            if self._unstarted is not None:
                earlier = iter(dataset)
                _set_iterator(earlier, self._unstarted)
                if draws_while_iterated(self._x):
                    for _ in earlier:
                        pass

    def begin_epoch(self) -> None:
        """Note the random numbers before Keras's loop begins an epoch: the threads of a `PyDataset` draw at once."""
        self._epoch_draws = draws()

    def take_over(self, iterator: Any) -> None:
        """Note the iterator from which the next batch will come."""
        if iterator is not self._iterator:
            self._iterator, self._taken = iterator, 0
            self._before = self._made - 1
            self._draws = self._epoch_draws
            # Before its first batch an iterator has the seeds that `shuffle` draws for the iterators after it.
            self._unstarted = self._saved(iterator) if isinstance(self._x, tf.data.Dataset) else None

    def taken(self, batches: int) -> None:
        """Note that so many batches were taken from the iterator."""
        self._taken += batches

    def get(self, iterator: Any) -> dict[str, Any]:
        """The position, before the next batch."""
        state = self._saved(iterator)
        return {
            "iterator": state, "unstarted": self._unstarted, "taken": self._taken, "before": self._before,
            "draws": self._draws if state is None else draws(), "rows": isinstance(iterator, KeptIterator),
        }

    def prepare(self, saved: dict[str, Any], dataset: Any, epochs: int) -> None:
        """Bring the source to where it was when the saved iterator was made, after so many complete epochs.

        `dataset` is what Keras iterates over.
        """
        if saved["iterator"] is not None:
            return
        _log.warning(
            "Resume: the position in the data (%s) is not saved, so %d batches are taken again and skipped. The "
            "training goes on exactly if they come in the same order again.", self.kind, saved["taken"],
        )
        if isinstance(self._x, keras.utils.PyDataset):
            for _ in range(epochs):
                self._x.on_epoch_begin()
                self._x.on_epoch_end()
        for _ in range(saved["before"]):
            if isinstance(self._x, tf.data.Dataset):
                iter(dataset)
            elif isinstance(self._x, types.GeneratorType):
                for _ in dataset:
                    pass
        set_draws(saved["draws"])

    def left(self) -> dict[str, Any]:
        """What a complete training leaves to the rest of the program: random numbers, and the seeds of a dataset."""
        return {"draws": draws(), "made": self._made}

    def leave(self, saved: dict[str, Any], dataset: Any) -> None:
        """Leave to the rest of the program what a complete training, which is not run again, has left."""
        if isinstance(self._x, tf.data.Dataset):
            again = draws_while_iterated(self._x)
            for _ in range(saved["made"] - self._made):
                earlier = iter(dataset)
                for _ in earlier if again else ():
                    pass
        set_draws(saved["draws"])

    def go_to(self, saved: dict[str, Any], iterator: Any) -> None:
        """Bring a new iterator to a saved position. The class has an example."""
        self._iterator, self._taken = iterator, saved["taken"]
        self._before, self._made = saved["before"], saved["before"] + 1
        self._draws = self._epoch_draws = saved["draws"]
        if saved["iterator"] is not None:
            set_draws(saved["draws"])
            _set_iterator(iterator, saved["iterator"])
            self._unstarted, self._followed = saved["unstarted"], True
            return
        fetch = feed_of(iterator).fetch
        for _ in range(saved["taken"]):
            fetch()

    def _saved(self, iterator: Any) -> bytes | None:
        if self._skips or not isinstance(_of_tensorflow(iterator), tf.data.Iterator):
            return None
        # Of arrays, Keras draws the epoch's permutation with an operation that is done when the first batch is there.
        policy = _FAIL if isinstance(self._x, tf.data.Dataset) else _IGNORE
        try:
            state = tf.raw_ops.SerializeIterator(
                resource_handle=_resource(iterator), external_state_policy=policy
            )
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            self._skips = True
            _log.warning(
                "Resume: TensorFlow cannot save the position in this dataset (%s). After a failure the batches before "
                "it are taken again and skipped.", error.message.rpartition("}} ")[2].partition(" [Op")[0],
            )
            return None
        found: bytes = tf.raw_ops.SerializeTensor(tensor=state).numpy()
        return found


def draws() -> tuple[Any, Any]:
    """The states of Python's and numpy's own random numbers.

    >>> before = draws()
    >>> number = random.random()
    >>> set_draws(before)
    >>> random.random() == number
    True
    """
    return random.getstate(), np.random.get_state()


def set_draws(states: tuple[Any, Any]) -> None:
    """Set the states of Python's and numpy's own random numbers. `draws` has an example.

    >>> before = draws()
    >>> numbers = np.random.random(2)
    >>> set_draws(before)
    >>> bool((np.random.random(2) == numbers).all())
    True
    """
    random.setstate(states[0])
    np.random.set_state(states[1])


def _is_python(x: Any) -> bool:
    return isinstance(x, keras.utils.PyDataset | types.GeneratorType)


def _kind(x: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (tf.data.Dataset, "tf.data.Dataset"), (keras.utils.PyDataset, "PyDataset"), (types.GeneratorType, "generator"),
    )
    return next((name for kind, name in kinds if isinstance(x, kind)), "arrays")


def _of_tensorflow(iterator: Any) -> Any:
    """The iterator of tf.data: over batches, or over the numbers of the rows of kept arrays."""
    return iterator.at_next if isinstance(iterator, BatchIterator) else iterator


def _set_iterator(iterator: Any, saved: bytes) -> None:
    state = tf.io.parse_tensor(saved, tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=_resource(iterator), serialized=state)


def _resource(iterator: Any) -> Any:
    return tf.nest.flatten(_of_tensorflow(iterator), expand_composites=True)[0]
