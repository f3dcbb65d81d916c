"""One `fit` with a `Resume` callback: it saves states between steps, and begins where a state was saved.

In: the arguments of `fit`, and the newest state of the callback's folder. Out: Keras's own `fit` runs, with hooks.

A state is saved where Keras's loop asks its epoch iterator for the next step. There every callback has seen the end of
the last step, and no callback has seen the beginning of the next one. A saved state is loaded at the same place. The
epoch iterator leaves out the steps before it: Keras counts these steps, and runs nothing for them. The state replaces
what the callbacks have done before, in `on_train_begin` and `on_epoch_begin`.

The state of a complete training is saved, and taken up, at the beginning of the callbacks' `on_train_end`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autodist_core.errors import SessionError
from autodist_core.log import log
from autodist_keras.callbacks.resume.callback_state import CallbackStates
from autodist_keras.callbacks.resume.encoding import decode, encode
from autodist_keras.callbacks.resume.position import Position
from autodist_keras.callbacks.resume.settings import require_equal, settings_of
from autodist_keras.callbacks.resume.state_files import BackgroundWriter, Schedule, StateFiles
from autodist_keras.callbacks.resume.variable_state import VariableState, set_global_seed
from autodist_keras.capture.hooks import hook

_ended: set[str] = set()
"""The folders of the trainings that this process has completed."""


@dataclass(frozen=True)
class _Loop:
    """Keras's epoch iterator, and what is known of it when the training begins."""

    iterator: Any
    settings: dict[str, Any]
    has_length: bool
    """Whether Keras knows the number of steps in an epoch."""

    def dataset(self) -> Any:
        """What Keras iterates over, made by Keras's own method."""
        return type(self.iterator)._get_iterator(self.iterator)


@dataclass
class _Progress:
    """How far the training is."""

    epoch: int
    first: int
    """The first epoch of the whole training."""
    batches: int = 0
    """How many this `fit` has trained on."""
    seen: int = 0
    """What Keras's epoch iterator had counted when the epoch began."""
    whole: bool = True
    """Whether no epoch was broken off: then Keras has told the data of its end."""
    has_ended: bool = False
    """Whether the state of the complete training was saved, or taken up."""


class ResumableFit:
    """One call of `fit` with a `Resume` callback."""

    def __init__(self, front: Any, resume: Any, arguments: dict[str, Any], callbacks: list[Any]) -> None:
        self._model, self._driver = front.model, front._driver
        self._resume = resume
        self._arguments = arguments
        self._callbacks = callbacks
        self._files = StateFiles(resume.folder, resume.keep)
        self._writer, self._schedule = BackgroundWriter(), Schedule(resume.every)
        self._variables = VariableState(front)
        self._position = Position(arguments.get("x"), arguments.get("shuffle", True))
        self._states = CallbackStates(callbacks)
        self._found: Any = None
        """The state with which this `fit` begins, until it is taken up."""
        self._start: Any = None
        """The part of it that says where in the data the first epoch begins, until that is found."""
        self._loop: Any = None
        first = arguments.get("initial_epoch", 0)
        self._at = _Progress(first, first)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let Keras's `fit` run inside this block."""
        with ExitStack() as ending:
            ending.enter_context(self._files.locked())
            self._found = self._newest()
            folder = str(self._files.folder.resolve())
            if self._found is not None:
                self._states.rewind(folder)
                self._start = {"data": self._found["data"], "loop": self._found["loop"]}
            ending.callback(self._states.leave, folder)
            ending.callback(self._writer.finish)
            by_rows = None if self._start is None else self._start["data"]["rows"]
            ending.enter_context(hook(self._driver, "data_by_rows", by_rows))
            ending.enter_context(hook(self._model, "_initial_epoch", self._begin_at()))
            ending.enter_context(hook(self._model, "_maybe_symbolic_build", self._built(ending)))
            ending.enter_context(hook(self._resume, "running", self))
            ending.callback(self._driver.before_next_step, None)
            ending.callback(self._driver.before_next_step, None, "test")
            yield
            # Not earlier: if another callback fails at its end, the call may be made again.
            if self._at.has_ended:
                _ended.add(folder)

    def _newest(self) -> Any:
        """The newest state; None in a folder without states. Nobody else keeps its arrays."""
        found = self._files.newest()
        if found is None:
            return None
        saved = datetime.fromtimestamp((self._files.folder / found.name).stat().st_mtime)
        return {**decode(found.tree, found.arrays), "saved": saved}

    def _begin_at(self) -> int | None:
        """The epoch with which Keras's loop begins; None if no state was found."""
        if self._found is None:
            return None
        place, epochs = self._found["place"], self._arguments.get("epochs", 1)
        if self._is_complete:
            if str(self._files.folder.resolve()) in _ended:
                raise SessionError(
                    f"{self._whose} holds a training that this program has completed already. Give every fit a folder "
                    "of its own, or delete the folder to train from the start."
                )
            return max(epochs, 1)
        if place["epoch"] >= epochs:
            raise SessionError(
                f"{self._whose} holds a training that is in epoch {place['epoch'] + 1}, and this fit has {epochs} "
                "epochs. Pass epochs as before, or more."
            )
        return int(place["epoch"])

    def _say(self) -> None:
        """Log where this `fit` begins, or that nothing of it is run again."""
        place, epochs = self._found["place"], self._arguments.get("epochs", 1)
        said = f"goes on in epoch {place['epoch'] + 1} of {epochs}"
        if self._is_complete:
            ended = f"ended in epoch {place['epoch']} of {epochs}, since stop_training was set"
            ended = ended if place["epoch"] < epochs else "is complete"
            more = "pass more epochs to go on, or delete the folder to train from the start"
            said = f"this training {ended}. It is not run again: {more}"
        elif not place["finished"]:
            batches = self._found["loop"]["batches"]
            said += f", at step {place['step'] + 1}{'' if batches is None else f' of {batches}'}"
        saved = self._found["saved"].isoformat(" ", "seconds")
        log.info("Resume(%r): %s (saved %s)", str(self._files.folder), said, saved)

    @property
    def _is_complete(self) -> bool:
        """Whether the state that was found is one after which nothing is left to train."""
        place, epochs = self._found["place"], self._arguments.get("epochs", 1)
        stopped = place["stopped"] and epochs <= place["epochs"]
        return bool(place["finished"] and (stopped or place["epoch"] >= epochs))

    @property
    def _whose(self) -> str:
        return f"Resume({str(self._files.folder)!r}): the folder"

    # Keras's loop ------------------------------------------------------------------------------------------------

    def _built(self, ending: ExitStack) -> Any:
        """What Keras's loop calls with its epoch iterator, before its callbacks begin."""
        own = self._model._maybe_symbolic_build

        def build(iterator: Any = None, data_batch: Any = None) -> None:
            if self._loop is None and iterator is not None:
                settings = settings_of(self._model, self._arguments, iterator, self._position.kind)
                self._loop = _Loop(iterator, settings, iterator.num_batches is not None)
                if self._found is not None:
                    require_equal(self._whose, self._found["settings"], settings)
                    self._at.first = self._found["first"]
                    self._say()
                ending.enter_context(hook(iterator, "_enumerate_iterator", self._steps))
                ending.enter_context(hook(iterator, "_get_iterator", self._iterator))
            own(iterator=iterator, data_batch=data_batch)

        return build

    def begin(self) -> None:
        """Make the variables of a complete training: Keras ends a `fit` with what the optimizer has of each weight."""
        if self._found is not None and self._is_complete:
            self._make(self._loop.iterator._get_iterator)

    def _make(self, source: Callable[[], Any] | None = None) -> None:
        self._variables.make(self._loop.dataset(), self._found["keras.random"], source)

    def begin_epoch(self, epoch: int) -> None:
        """Note the epoch. Take up the state of a complete training that is to be longer."""
        self._states.begin()
        self._at.epoch = epoch
        if self._found is not None and self._found["place"]["finished"]:
            self._make()
            self._take_up(metrics=False)

    def _steps(self) -> Iterator[tuple[int, int, Any]]:
        """The steps of one epoch, as Keras's epoch iterator gives them; after a failure, those that are left."""
        loop, at, start, done = self._loop.iterator, self._at, self._start, 0
        self._start, at.whole = None, False
        if self._found is not None:
            self._make()
        self._position.begin_epoch(at.epoch - at.first)
        if start is not None:
            done = self._found["place"]["step"] if self._found is not None else 0
            loop._num_batches = start["loop"]["batches"]
            self._position.prepare(start["data"], self._loop.dataset(), loop.data_adapter)
        begins = True
        for first, last, iterator in type(loop)._enumerate_iterator(loop):
            if begins:
                begins = False
                if start is not None:
                    loop._steps_seen = start["loop"]["seen"] + loop.steps_per_execution
                    self._position.go_to(start["data"], iterator, loop.data_adapter)
                    start = None  # it may be large, and this function runs until the end of the epoch
                if self._found is not None:
                    self._take_up(metrics=True)
                at.seen = loop._steps_seen - loop.steps_per_execution
            if first < done:
                continue
            self._position.take_over(iterator)
            due = self._schedule.is_due(at.batches, first == 0, self._writer.busy)
            write = self._write(first, iterator) if due else None
            if write is not None and self._loop.has_length:
                self._writer.start(write)
            yield first, last, iterator
            # Only now it is sure that data without a known length had this step.
            if write is not None and not self._loop.has_length:
                self._writer.start(write)
            at.batches += last - first + 1
            self._position.taken(last - first + 1)
        at.whole = True

    def _iterator(self) -> Any:
        """What Keras's epoch iterator makes its iterators of."""
        dataset = self._loop.dataset()
        self._position.note_iterator(dataset)
        return dataset

    def end(self) -> None:
        """Save the state of the complete training. If it was complete before, take its state up."""
        if self._found is not None:
            self._states.begin()
            left, begun = self._found["left"], self._found["place"]["epoch"] - self._found["first"]
            self._take_up(metrics=True, complete=True)
            loop, ended = self._loop, begun - (not left["whole"])
            self._position.leave(left, loop.dataset(), loop.iterator.data_adapter, begun, ended)
        elif self._at.batches:
            self._writer.start(self._write(0, None))
        self._writer.finish()
        self._at.has_ended = True

    # States ------------------------------------------------------------------------------------------------------

    def _take_up(self, metrics: bool, complete: bool = False) -> None:
        """Give model and callbacks the state that was found; variables that do not exist, before the next step.

        `complete` says that all variables exist.
        """
        found, self._found = self._found, None
        rest = self._variables.set(self._whose, found["variables"], found["compressors"], metrics)
        set_global_seed(found["keras.random"])
        self._variables.set_of_validation(self._whose, found["of validation"])
        if complete:
            rest()
            self._model.stop_training = found["place"]["stopped"]
        else:
            self._driver.before_next_step(rest)
        self._states.set(self._all_callbacks(), found["callbacks"])

    def _write(self, step: int, iterator: Any) -> Callable[[], None]:
        """Write the state before a step of this epoch, or of the complete training, one value after the other; return
        what brings the file to the disk.
        """
        self._writer.finish()
        begun, written = time.monotonic(), self._writer.seconds
        at, loop = self._at, self._loop.iterator
        finished, seen = iterator is None, at.seen
        if finished:
            self._position.begin_epoch(at.epoch + 1 - at.first)
            # With `steps_per_epoch` Keras goes on with an iterator in the next epoch.
            iterator = loop._current_iterator if loop.steps_per_epoch else None
            seen = loop._steps_seen if iterator is not None else 0
        arrays: list[Any] = []
        tree = encode(
            {
                "place": {
                    "epoch": at.epoch + finished, "step": step, "finished": finished,
                    "stopped": bool(self._model.stop_training), "epochs": self._arguments.get("epochs", 1),
                },
                "first": at.first,
                "settings": self._loop.settings,
                "loop": {"batches": loop._num_batches, "seen": seen},
                "data": self._position.get(iterator) if iterator is not None else self._position.between(),
                "left": {**self._position.left(), "whole": at.whole} if finished else None,
                "callbacks": self._states.get(self._all_callbacks()),
                **self._variables.get(str(self._files.next().with_suffix(""))),
            },
            arrays,
        )
        finish = self._files.begin(tree, arrays)
        self._schedule.saved(at.batches, time.monotonic() - begun + written)
        return finish

    def _all_callbacks(self) -> list[Any]:
        """The callbacks, and the History that Keras has added."""
        own = self._model.history
        return [*self._callbacks, *([own] if not any(own is callback for callback in self._callbacks) else [])]
