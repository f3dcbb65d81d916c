"""The variables of a training, and the compressors' state, as `Resume` saves them and gives them back.

In: a `DistributedModel`. Out: names and arrays. When a process begins, Keras has not made all variables yet: many are
made by the first step. So `make` captures a step for batches of the data's types, before the variables are set. Where
these types leave sizes open, the variables that exist are set at once, and all of them when the first step is captured,
before it runs. A value that a callback has given a variable in the meantime stays.

Variables are matched by their order, their shapes and their names. The numbers with which Keras makes names unique may
differ, as they do when a notebook's cell runs again.
"""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.kernel import drawn_by_replicas
from autodist_core.log import log
from autodist_core.runtime import same_bits
from autodist_core.step.draws import Stream
from autodist_core.step.graph_item import Variable
from autodist_core.step.index import StepIndex
from autodist_core.training import CompressorState, Entry
from autodist_keras.callbacks.resume.encoding import Later
from autodist_keras.callbacks.resume.position import draws, set_draws
from autodist_keras.capture.tracing import CapturedStep, optimizers_of
from autodist_keras.capture.variables import ModelVariables, tf_variable_of
from autodist_keras.seams import GLOBAL_ATTRIBUTE
from autodist_keras.training.step_functions import feed_of

T = TypeVar("T")
_NAME = "global_seed_generator"
"""Keras's name of the generator. Its older versions have no constant for it."""
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


class VariableState:
    """The variables and the compressors' state of one `fit`.

    >>> import keras
    >>> from autodist_core.resource_spec import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    >>> model.compile("sgd", "mse")
    >>> state = VariableState(DistributedModel(model, ResourceSpec.local(cpus=2)))
    >>> saved, kernel = state.get()["variables"], model.weights[0]
    >>> saved = [{**each, "value": each["value"].read()} for each in saved]
    >>> _ = kernel.assign(kernel + 1.0)
    >>> set_the_others = state.set("the folder", saved, None)
    >>> bool((kernel.numpy() == saved[0]["value"]).all())
    True
    """

    def __init__(self, front: Any) -> None:
        self._front = front
        self._entries: tuple[Entry, ...] = ()
        self._captured: CapturedStep | None = None
        self._awaited: Sequence[Any] = ()
        """What variables that only steps of `evaluate` change are set to when such a step is there."""
        self._mentioned = False

    def get(self, path: str = "") -> dict[str, Any]:
        """The values after the last step. The model's variables stay as they are.

        Machines write large ones to a checkpoint with this path. The variables of the session stand for these.
        """
        driver = self._front._driver
        if not self._entries:
            self._entries, self._captured = self._all(), None
        self._mention_draws()
        state = driver.training.state
        compressors = self._front.compressor_state()

        def read(variable: Any) -> Any:
            entry = Entry(Variable("keras.random", tuple(variable.shape), variable.dtype.name), variable)
            return entry.read() if state is None else state.values([entry])[0]()

        return {
            "keras.random": global_seed(read),
            "variables": _saved(self._entries, state, path),
            "of validation": self._of_validation(state),
            "compressors": compressors and {"strategy": compressors.strategy, "values": dict(compressors.values)},
        }

    def set(self, whose: str, saved: Sequence[Any], compressors: Any, metrics: bool = True) -> Callable[[], None]:
        """Set the variables that exist. Return what sets the others, once they exist.

        Without `metrics`, the variables of metrics keep their values. If these are not the saved variables, a
        SessionError says so, and all variables keep their values.
        """
        counts = [index for index, each in enumerate(saved) if metrics or each["kind"] != "metric"]
        entries, made = self._all(), self._captured is not None
        matches = None if made else _matches(entries, saved)
        if matches is None:
            _require_same(whose, entries, saved)
            matches = dict(enumerate(entries))
        found = {index: matches[index] for index in counts if index in matches}
        before = [(entry, entry.view()) for entry in found.values()]
        for index, entry in found.items():
            entry.tf_variable.assign(saved[index]["value"])
        if compressors is not None:
            self._front._driver.training.set_compressor_state(CompressorState(**compressors))
        given = {id(entry.tf_variable): index for index, entry in found.items()}

        def rest() -> None:
            entries = self._all()
            try:
                _require_same(whose, entries, saved)
            except SessionError:
                for entry, value in before:
                    entry.tf_variable.assign(value)
                raise
            for index in counts:
                variable = entries[index].tf_variable
                # A variable that was made early may have matched one that stands before it.
                earlier = given.get(id(variable))
                if earlier is None or (earlier != index and same_bits(variable.numpy(), saved[earlier]["value"])):
                    variable.assign(saved[index]["value"])

        return rest

    def set_of_validation(self, whose: str, saved: Sequence[Any]) -> None:
        """Set what only steps of `evaluate` change, as soon as such a step is captured, and before it runs."""
        self._awaited = saved

        def rest() -> None:
            entries = self._changed_by_evaluate()
            _require_same(whose, entries, saved)
            for entry, each in zip(entries, saved, strict=True):
                entry.tf_variable.assign(each["value"])

        if saved:
            self._front._driver.before_next_step(rest, "test")

    def _of_validation(self, state: Any) -> Sequence[Any]:
        """What only steps of `evaluate` change; before the first such step, what it will be set to."""
        captured = self._front._driver.captured_in("test")
        return self._awaited if captured is None else _saved(self._changed_by_evaluate(), state)

    def _changed_by_evaluate(self) -> tuple[Entry, ...]:
        """The variables that a captured step of `evaluate` changes, and that are not among all the others."""
        captured = self._front._driver.captured_in("test")
        written = StepIndex.of(captured.item).written_by_compute
        others = {*(id(entry.tf_variable) for entry in self._all()), global_seed(id)}
        return tuple(
            entry for entry in captured.entries if entry.spec.name in written and id(entry.tf_variable) not in others
        )

    def make(self, dataset: Any, drawn: np.ndarray | None, source: Callable[[], Any] | None = None) -> None:
        """Make the variables that the first step would make, and Keras's own seed if one was saved. Nothing is trained.

        If the types of the batches leave sizes open, a batch of the `source` is taken, if there is one. The random
        numbers of Python and numpy go on as if nothing had been made.
        """
        driver, before = self._front._driver, draws()
        set_global_seed(drawn)
        try:
            batch = _of_types(dataset.element_spec)
            if batch is not None:
                same = all(part.shape[0] for part in keras.tree.flatten(dataset.element_spec))
                self._captured = driver.captured_for(batch, keep=True, same_size=same)
        except Exception:
            # The first step meets the same error, and raises it.
            log.debug("Resume: a step could not be captured for batches of zeros", exc_info=True)
        if self._captured is None and source is not None:
            self._captured = driver.captured_for(feed_of(iter(source())).fetch())
        set_draws(before)

    def _all(self) -> tuple[Entry, ...]:
        """Every variable that exists: of the model, its optimizers and metrics, and what the captured step reads."""
        model, captured = self._front.model, self._front._driver.captured or self._captured
        read = [] if captured is None else [entry.tf_variable for entry in captured.entries]
        return ModelVariables(model, optimizers_of(model), read).entries

    def _mention_draws(self) -> None:
        """Say once which random numbers cannot be saved."""
        captured = self._front._driver.captured
        if captured is None or self._mentioned:
            return
        self._mentioned = True
        unsaved = (Stream.ATTRIBUTE, Stream.UNSEEDED)
        drawn = drawn_by_replicas(StepIndex.of(captured.item))
        names = ["/".join(draw.path) for draw in drawn if draw.stream in unsaved]
        if names:
            log.warning(
                "Resume: %s of TensorFlow %s random numbers whose position is not saved: after a failure they begin "
                "anew. keras.random with a SeedGenerator has a position that is saved.",
                ", ".join(names[:3]), "draws" if len(names) == 1 else "draw",
            )


def _saved(entries: Sequence[Entry], state: Any, path: str = "") -> list[dict[str, Any]]:
    """Names and values of variables; the session's values, if a session is there."""
    values = [entry.read for entry in entries] if state is None else state.values(entries, path)
    return [
        {
            "name": entry.spec.name, "kind": entry.spec.kind,
            "value": value if isinstance(value, Variable) else Later(value),
        }
        for entry, value in zip(entries, values, strict=True)
    ]


def _is_same(entry: Entry, saved: Any) -> bool:
    value: np.ndarray = saved["value"]
    spec = entry.spec
    same = spec.kind == saved["kind"] and tuple(spec.shape) == value.shape and spec.dtype == value.dtype.name
    return same and _NUMBER.sub("", spec.name) == _NUMBER.sub("", saved["name"])


def _of_types(spec: Any) -> Any:
    """A batch of zeros of the types of a dataset; None if these leave more open than the number of examples.

    >>> [part.shape for part in _of_types((tf.TensorSpec((None, 3)), tf.TensorSpec((8, 1))))]
    [TensorShape([8, 3]), TensorShape([8, 1])]
    >>> _of_types(tf.TensorSpec((None, None)))
    """
    parts = keras.tree.flatten(spec)
    if not all(isinstance(part, tf.TensorSpec) and part.shape.rank and None not in part.shape[1:] for part in parts):
        return None
    # A batch of one example would not be divided.
    examples = next((part.shape[0] for part in parts if part.shape[0]), 2)
    return keras.tree.map_structure(lambda part: tf.zeros([examples, *part.shape[1:]], part.dtype), spec)


def _matches(entries: Sequence[Entry], saved: Sequence[Any]) -> dict[int, Entry] | None:
    """The variables that exist, by their positions among the saved ones; None if they are not some of these, in order.
    """
    found: dict[int, Entry] = {}
    positions = iter(range(len(saved)))
    for entry in entries:
        position = next((position for position in positions if _is_same(entry, saved[position])), None)
        if position is None:
            return None
        found[position] = entry
    return found


def _require_same(whose: str, entries: Sequence[Entry], saved: Sequence[Any]) -> None:
    """Raise a SessionError if these are not the saved variables. Nothing has been trained yet."""
    for entry, each in zip_longest(entries, saved):
        if entry is None or each is None or not _is_same(entry, each):
            now = f"{entry.spec.name!r} ({entry.spec.dtype}, {tuple(entry.spec.shape)})" if entry else "nothing more"
            before = f"{each['name']!r} ({each['value'].dtype.name}, {each['value'].shape})" if each else "nothing more"
            raise SessionError(
                f"{whose} holds a training of another model: where it has {before}, this model has {now}. Build the "
                "model as before, or give this training another folder."
            )


def global_seed(read: Callable[[Any], T]) -> T | None:
    """What `read` gives for the generator's TensorFlow variable; None if nothing has been drawn from it.

    It is the seed of `keras.random` for draws without a `SeedGenerator` of their own: state of a training also if no
    training step draws from it. A validation may, or a callback.

    >>> _ = keras.random.uniform(())
    >>> before = global_seed(lambda variable: variable.numpy())
    >>> number = float(keras.random.uniform(()))
    >>> set_global_seed(before)
    >>> float(keras.random.uniform(())) == number
    True
    """
    generator = _generator()
    return None if generator is None else read(tf_variable_of(generator.state))


def set_global_seed(value: np.ndarray | None) -> None:
    """Give the generator a state that `global_seed` returned.

    >>> set_global_seed(None)  # nothing changes
    """
    if value is not None:
        if _generator() is None:
            keras.random.uniform(())  # makes it
        _generator().state.assign(value)


def _generator() -> Any:
    return GLOBAL_ATTRIBUTE.get()(_NAME)
