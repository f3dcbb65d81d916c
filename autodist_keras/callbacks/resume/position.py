"""The position in the data of a `fit`: saved with a state, and found again in another process.

In: the iterators from which Keras's loop takes its batches. Out: a position that `encoding.py` can encode.

- An iterator of tf.data over arrays or a dataset is saved itself: where it is, the epoch's permutation, the buffers of
  `shuffle`. It goes on exactly there.
- Where TensorFlow cannot save it (a generator, a `PyDataset`, Python or unsaved random numbers inside the dataset), the
  same number of batches is taken again and skipped. That is exact if the source gives the same batches again.

Each iterator of a dataset draws the seeds of its shuffles. How many seeds were drawn is saved too: before the iterator
where its batches are taken again, and else at the position.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import amount
from autodist_core.log import log
from autodist_core.runtime.data_pipelines import FAIL, IGNORE, SeedGenerators, set_state, state_and_drawn
from autodist_keras.capture.hooks import hook
from autodist_keras.training.batches import BatchIterator, kind_of_data
from autodist_keras.training.kept_data import KeptIterator
from autodist_keras.training.step_functions import feed_of
from autodist_keras.training.travelling_data import PipelineBatches

_PYTHON = ("PyDataset", "generator")
"""The kinds of data that are Python code."""


class Position:
    """Follows the iterators of one `fit`, and brings the first one to a saved position.

    >>> def numbers():
    ...     return tf.data.Dataset.range(6).shuffle(6, seed=1)
    >>> dataset = numbers()
    >>> position = Position(dataset, shuffle=False)
    >>> position.note_iterator(dataset)
    >>> iterator = iter(dataset)
    >>> position.take_over(iterator)
    >>> before = next(iterator)
    >>> position.taken(1)
    >>> saved, rest = position.get(iterator), [[int(number) for number in numbers] for numbers in (iterator, dataset)]
    >>> other = numbers()
    >>> position = Position(other, shuffle=False)
    >>> position.note_iterator(other)
    >>> iterator = iter(other)
    >>> position.go_to(saved, iterator)
    >>> [[int(number) for number in numbers] for numbers in (iterator, other)] == rest
    True
    """

    def __init__(self, x: Any, shuffle: Any) -> None:
        self.kind = kind_of_data(x)
        """What sort of data it is."""
        self._iterator: Any = None
        self._takes: list[int] = []
        """How many batches were taken from each iterator that Keras has made. It uses not all of them."""
        self._current = 0
        """Which of them is the current one."""
        self._generators: SeedGenerators | None = None
        """What the dataset draws seeds from."""
        self._unread = False
        """Whether they cannot be read."""
        self._drawn_first: Any = None
        """How many seeds were drawn before the first iterator of the training was made."""
        self._drawn: Any = None
        """How many seeds were drawn before the last iterator that Keras made."""
        self._drawn_before: Any = None
        """How many seeds were drawn before the current iterator was made."""
        self._draws: Any = None
        """The states of Python's and numpy's random numbers before the epoch in which the iterator began."""
        self._epoch_draws: Any = None
        self._epochs = self._begun = 0
        """How many epochs were complete before the current epoch, and before the one in which the iterator began."""
        self._skips = self.kind in _PYTHON or shuffle == "batch"

    def note_iterator(self, dataset: Any) -> None:
        """Note that Keras makes an iterator of this. Not all are used, and each may draw the seeds of a shuffle."""
        self._find_generators(dataset)
        self._takes.append(0)
        self._drawn = self._seeds()
        if self._drawn_first is None:
            self._drawn_first = self._drawn

    def begin_epoch(self, epochs: int) -> None:
        """Note the random numbers before Keras's loop begins an epoch, after so many complete epochs.

        The threads of a `PyDataset` draw at once.
        """
        self._epoch_draws, self._epochs = draws(), epochs

    def take_over(self, iterator: Any) -> None:
        """Note the iterator from which the next batch will come."""
        if iterator is not self._iterator:
            self._iterator, self._current = iterator, len(self._takes) - 1
            self._draws, self._drawn_before, self._begun = self._epoch_draws, self._drawn, self._epochs

    def taken(self, batches: int) -> None:
        """Note that so many batches were taken from the iterator."""
        self._takes[self._current] += batches

    def get(self, iterator: Any) -> dict[str, Any]:
        """The position, before the next batch of this iterator."""
        self.take_over(iterator)
        state, drawn = self._saved(iterator)
        return {
            "iterator": state, "taken": self._takes[self._current], "earlier": self._takes[: self._current],
            "drawn": drawn, "drawn_first": self._drawn_first, "begun": self._begun,
            "draws": self._draws if state is None else draws(), "rows": isinstance(iterator, KeptIterator),
        }

    def between(self) -> dict[str, Any]:
        """The position between two epochs, where the next one has an iterator of its own."""
        return {**self.left(), "iterator": None, "taken": 0, "rows": None}

    def prepare(self, saved: dict[str, Any], dataset: Any, adapter: Any) -> None:
        """Bring the source to where it was when the saved iterator was made.

        `dataset` is what Keras iterates over, made by an `adapter` of Keras's.
        """
        self._find_generators(dataset)
        self._fill_caches(saved)
        if self._unread or self.kind == "generator":
            self._go_through(dataset, saved["earlier"])
        if saved["iterator"] is not None:
            return
        if saved["taken"] or self.kind in _PYTHON:
            log.warning(
                "Resume: the position in the data (%s) is not saved, so %s taken again and skipped. The "
                "training goes on exactly if they come in the same order again.", self.kind,
                amount(saved["taken"], "batch is", "batches are"),
            )
        self._begun = saved.get("begun", self._epochs)
        self._tell_of_epochs(adapter, *[True, False] * self._begun)
        self._set_seeds(saved["drawn"])
        set_draws(saved["draws"])

    def left(self) -> dict[str, Any]:
        """What a complete training leaves to the rest of the program: random numbers, and the seeds of a dataset."""
        return {"earlier": [*self._takes], "draws": draws(), "drawn": self._seeds(), "drawn_first": self._drawn_first}

    def leave(self, saved: dict[str, Any], dataset: Any, adapter: Any, begun: int, ended: int) -> None:
        """Leave to the rest of the program what a complete training, which is not run again, has left.

        `begun` and `ended` are the numbers of its epochs. A generator has batches that Keras takes ahead, in a number
        that depends on the time, so it cannot be brought to where it was.
        """
        self._tell_of_epochs(adapter, *[True, False] * ended, *[True] * (begun - ended))
        if self.kind == "generator":
            log.warning(
                "Resume: this fit is complete, and its batches are not taken from the generator again. A later fit "
                "that takes batches from the same generator gets others than before."
            )
        self._find_generators(dataset)
        self._fill_caches(saved)
        if self._unread:
            self._go_through(dataset, saved["earlier"])
        self._set_seeds(saved["drawn"])
        set_draws(saved["draws"])

    def _tell_of_epochs(self, adapter: Any, *begins: bool) -> None:
        """Let a `PyDataset` know of the beginnings and ends of epochs that are not run again.

        Its `adapter` counts them, too: since 3.16, Keras shuffles the batches by the number of the epoch.
        """
        if self.kind == "PyDataset":
            with hook(adapter, "enqueuer", None):  # its threads would make batches
                for begin in begins:
                    (adapter.on_epoch_begin if begin else adapter.on_epoch_end)()

    def go_to(self, saved: dict[str, Any], iterator: Any, adapter: Any = None) -> None:
        """Bring a new iterator to a saved position. The class has an example."""
        earlier = saved["earlier"]
        self._iterator, self._takes, self._current = iterator, [*earlier, saved["taken"]], len(earlier)
        self._draws = self._epoch_draws = saved["draws"]
        if saved["iterator"] is not None:
            set_draws(saved["draws"])
            set_state(_of_tensorflow(iterator), saved["iterator"])
            self._set_seeds(saved["drawn"])
            return
        self._drawn_before = saved["drawn"]
        fetch = feed_of(iterator).fetch
        for _ in range(saved["taken"]):
            fetch()
        self._tell_of_epochs(adapter, *[False, True] * (self._epochs - self._begun))

    def _saved(self, iterator: Any) -> tuple[bytes | None, Any]:
        """The state of an iterator, and how many seeds were drawn; without a state, before the iterator was made."""
        again = None, self._drawn_before
        if self._skips or not isinstance(_of_tensorflow(iterator), tf.data.Iterator):
            return again
        if self._generators is not None and self._generators.writes_file:
            # Its state needs the files as they are at this moment, and they will have changed.
            return again
        # Of arrays, Keras draws the epoch's permutation with an operation that is done when the first batch is there.
        policy = FAIL if self.kind == "tf.data.Dataset" else IGNORE
        try:
            return state_and_drawn(_of_tensorflow(iterator), self._seeds, policy) or again
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            self._skips = True
            log.warning(
                "Resume: TensorFlow cannot save the position in this dataset (%s). After a failure the batches "
                "before it are taken again and skipped.", error.message.rpartition("}} ")[2].partition(" [Op")[0],
            )
            return again

    # Seeds -------------------------------------------------------------------------------------------------------

    def _go_through(self, dataset: Any, earlier: Sequence[int]) -> None:
        """Take again what was taken from earlier iterators, so that shuffles draw their seeds again."""
        if any(earlier) and self.kind == "tf.data.Dataset":
            batches = amount(sum(earlier), "batch of earlier epochs is", "batches of earlier epochs are")
            log.info("Resume: %s taken again and skipped.", batches)
        unknown = int(_of_tf_data(dataset).cardinality()) == tf.data.experimental.UNKNOWN_CARDINALITY
        for taken in earlier:
            # Where the length is not known, Keras has asked for one more.
            for _ in itertools.islice(_of_tf_data(dataset), taken + (unknown and taken > 0)):
                pass

    def _find_generators(self, dataset: Any) -> None:
        """Find what a dataset draws seeds from. `dataset` is what Keras iterates over."""
        if self._generators is not None or self._unread or self.kind != "tf.data.Dataset":
            return
        try:
            generators = SeedGenerators.of(_of_tf_data(dataset))
            generators.drawn()
            self._generators = generators
        except ValueError as error:
            self._unread = self._skips = True
            log.warning(
                "Resume: the seeds of this dataset cannot be saved (%s). After a failure, all batches before it are "
                "taken again and skipped.", error,
            )

    def _fill_caches(self, saved: dict[str, Any]) -> None:
        """Fill the caches of the dataset in the order of the first epoch, which an iterator's state may not have."""
        self._drawn_first = saved["drawn_first"]
        if self._generators is not None and self._generators.has_caches and self._drawn_first is not None:
            log.info("Resume: the cache of the dataset is filled again, in the order of the first epoch.")
            self._generators.fill_caches(self._drawn_first)

    def _seeds(self) -> list[int] | None:
        return None if self._generators is None else self._generators.drawn()

    def _set_seeds(self, drawn: Sequence[int] | None) -> None:
        if self._generators is None:
            return
        if drawn is None or len(drawn) != len(self._generators.drawn()):
            log.warning(
                "Resume: the state does not have the seeds of this dataset. Its shuffles may have another order in "
                "later epochs."
            )
            return
        self._generators.set(drawn)


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


def _of_tf_data(dataset: Any) -> Any:
    """The dataset of tf.data: over batches that machines make, or itself."""
    return dataset.dataset if isinstance(dataset, PipelineBatches) else dataset


def _of_tensorflow(iterator: Any) -> Any:
    """The iterator of tf.data: over batches, or over the numbers of the rows of kept arrays."""
    return iterator.at_next if isinstance(iterator, BatchIterator) else iterator
