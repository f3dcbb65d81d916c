"""DistributedModel: a Keras model whose `fit` runs over all devices of a cluster.

Keras's own loops run; what they call for each batch is a distributed step. Between two calls the wrapped model is a
plain Keras model that holds the trained state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

import keras

from autodist_core.plan import Plan
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.builder import StrategyBuilder
from autodist_keras import checks
from autodist_keras.capture.coupled import Notes
from autodist_keras.capture.hooks import undone_if_refused
from autodist_keras.capture.losses import said_of_own
from autodist_keras.reports import planning
from autodist_keras.reports.verify import verify
from autodist_keras.settings import SETTINGS, Settings, refuse_misspelt
from autodist_keras.training.batches import first_batches
from autodist_keras.training.compressor_state import CompressorState
from autodist_keras.training.driver import Driver

_OWN = ("model", "_driver", "_passed")


def _shown_as_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let `help` and editors show Keras's parameters, and those that the method adds, where a call goes to Keras."""
    signature = inspect.signature(getattr(keras.Model, method.__name__))
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    added = [one for one in inspect.signature(method).parameters.values() if one.kind is keyword_only]
    method.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return method


class DistributedModel:
    """Train a Keras model over several devices by the methods it already has.

    Args:
        model: Any Keras 3 model (TensorFlow backend): built or not, compiled or not.
        resource_spec: The devices: a path to a YAML file, a dict, a `ResourceSpec`, or None for this machine.
        strategy: A strategy builder, its name, a finished `Strategy`, or None for all-reduce (dense variables) and
            parameter servers (sparse ones).
        share_memory: Whether replicas on CPU devices of one machine compute on one copy of the weights and update it
            once. `False` gives every replica its own, as on separate devices; None does so only where the strategy
            needs it, for a compressor, staleness or asynchronous updates.
        fused_updates: Whether an optimizer whose formula TensorFlow has a training kernel for (SGD, Adam, AdamW and
            others) updates in it: faster, and the same numbers to rounding. None means yes where there are several
            replicas; a single one then equals plain Keras bit by bit.
        on_failure: What happens when another machine is lost in the middle of a call: "raise" ends the call with an
            error and keeps what was trained, "restart" starts all machines again, "shrink" goes on without the lost
            ones; both go on from the last consistent state, and no example is counted twice.
        lost_after: Seconds of silence after which another machine counts as lost. One whose agent ends is at once.
        tunnelled: Whether all that travels between machines goes through ssh and this program, encrypted and slower.

    All but the model can be set later too: `dm.strategy = "PS"`. The next `fit` goes on from the model's state.

    >>> import keras, numpy as np
    >>> from autodist_core import ResourceSpec
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> dm = DistributedModel(model, ResourceSpec.local(cpus=2), strategy="AllReduce")
    >>> dm.compile("sgd", "mse")
    >>> history = dm.fit(np.ones((8, 3)), np.zeros((8, 1)), batch_size=4, verbose=0)
    >>> sorted(history.history)
    ['loss']
    >>> dm.close()
    """

    # For type checkers and editors; `__getattr__` gives them.
    resource_spec: ResourceSpec
    strategy: StrategyBuilder
    share_memory: bool | None
    fused_updates: bool | None
    on_failure: str
    lost_after: float
    tunnelled: bool

    def __init__(
        self, model: Any, resource_spec: Any = None, strategy: Any = None, share_memory: bool | None = None,
        fused_updates: bool | None = None, on_failure: str = "raise", lost_after: float = 60.0,
        tunnelled: bool = False,
    ) -> None:
        self.model = checks.keras_model(model)
        settings = Settings(resource_spec, strategy, share_memory, fused_updates, on_failure, lost_after, tunnelled)
        self._driver = Driver(self.model, settings)
        self._passed: set[str] = set()

    # Keras's surface ---------------------------------------------------------------------------------------------

    @_shown_as_keras
    def compile(self, *args: Any, strategy: Any = None, **kwargs: Any) -> None:
        """Keras's `compile`, and optionally another strategy; the weights stay. What is refused changes nothing."""
        settings = self._driver.settings
        if strategy is not None:
            settings = replace(settings, strategy=strategy)
        self._driver.require_idle()
        with undone_if_refused(self.model):
            self._keras("compile", *args, **kwargs)
            self._driver.change(settings)

    @_shown_as_keras
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `fit`, over all replicas."""
        with self._driver.running("fit"):
            return self._keras("fit", *args, **kwargs)

    @_shown_as_keras
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `evaluate`, over all replicas."""
        with self._driver.running("evaluate"):
            return self._keras("evaluate", *args, **kwargs)

    @_shown_as_keras
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `predict`, over all replicas; results in the order of the data."""
        with self._driver.running("predict"):
            return self._keras("predict", *args, **kwargs)

    @_shown_as_keras
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `train_on_batch`; the batch is split over the replicas."""
        with self._driver.running("train_on_batch"):
            return self._keras("train_on_batch", *args, **kwargs)

    @_shown_as_keras
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `test_on_batch`; the batch is split over the replicas."""
        with self._driver.running("test_on_batch"):
            return self._keras("test_on_batch", *args, **kwargs)

    @_shown_as_keras
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `predict_on_batch`; the batch is split over the replicas."""
        with self._driver.running("predict_on_batch"):
            return self._keras("predict_on_batch", *args, **kwargs)

    @_shown_as_keras
    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keras's `save`: the file is that of the plain model, and holds the compressors' state besides."""
        self._keras("save", *args, **kwargs)
        state = self.compressor_state()
        if state is not None:
            state.write(args[0] if args else kwargs["filepath"])

    def load_compressor_state(self, path: str | PathLike[str]) -> None:
        """Go on with what the compressors of a strategy had kept when `save` wrote this file."""
        self.set_compressor_state(CompressorState.read(path))

    def _keras(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the model's method; of what a person put in its place, such as `model.fit = dm.fit`, it may come back.

        Then it is Keras's that is called.
        """
        back = name in self._passed or name not in vars(self.model)
        found = partial(getattr(type(self.model), name), self.model) if back else getattr(self.model, name)
        before, self._passed = self._passed, self._passed - {name} if back else self._passed | {name}
        try:
            return found(*args, **kwargs)
        finally:
            self._passed = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        if name in SETTINGS:
            return getattr(self._driver.settings, name)
        try:
            return getattr(self.model, name)
        except AttributeError:
            refuse_misspelt(name, self.model)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS:
            self._driver.change(replace(self._driver.settings, **{name: value}))
        elif name == "model" and name in vars(self):
            raise AttributeError("a DistributedModel keeps its model: wrap the other one, DistributedModel(other, ...)")
        elif name in _OWN:
            object.__setattr__(self, name, value)
        elif name in vars(DistributedModel) and not hasattr(keras.Model, name):
            raise AttributeError(
                f"DistributedModel.{name} is the wrapper's own, and cannot be set. An attribute of the Keras model is "
                f"set on the model: dm.model.{name}."
            )
        else:
            refuse_misspelt(name, self.model)
            setattr(self.model, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *SETTINGS, *dir(self.model)})

    def __repr__(self) -> str:
        replicas = self._driver.settings.replicas
        return f"<DistributedModel of {self.model!r}, {type(self.strategy).__name__}, {replicas} replicas>"

    def __reduce__(self) -> Any:
        """What a copy is made of: the model, the settings and what compressors kept, but no session."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        return _made_anew, (type(self), self.model, settings, self.compressor_state())

    def __enter__(self) -> DistributedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the devices. The model keeps its state, and a later `fit` starts anew from it."""
        self._driver.close()

    # Planning ----------------------------------------------------------------------------------------------------

    def plan(self, x: Any = ..., y: Any = None, sample_weight: Any = None, class_weight: Any = None) -> Plan:
        """The table of what is done with each variable, before anything runs.

        Without data, the model must be built and the tables of Embedding layers are taken to be sparse; with a batch
        (`plan(x, y)`) or after a `fit`, the captured step says which gradients are. Data may have any form that `fit`
        takes. Arrays are one batch; of what comes in batches the first counts, and a generator does not give it again.

        The plan is a string, and a notebook shows it as a table.
        """
        driver, settings = self._driver, self._driver.settings
        checks.batched(self.model, settings.replicas)
        if x is ...:
            captured = driver.captured
        else:
            batches = first_batches("plan", self.model, driver, x, y, sample_weight, class_weight)
            captured = driver.captured_for(batches[0])
        item = captured.item if captured else planning.assumed_item(self.model)
        remarks = captured.remarks if captured else said_of_own(self.model)
        coupled = captured.notes if captured else Notes()
        return planning.plan(
            self.model, item, driver.compile_strategy(item), settings.share_memory, settings.fuses, remarks, coupled
        )

    def verify(
        self, x: Any, y: Any = None, steps: int = 3, sample_weight: Any = None, class_weight: Any = None
    ) -> str:
        """Train a few steps on one device and on all replicas, from the same state, and compare every variable.

        Data may have any form that `fit` takes. Arrays are one batch, which every step trains on; of what comes in
        batches, each step takes one. The model's state is as before afterwards. Returns a table; raises a ValueError if
        variables differ by more than rounding and nothing in the plan explains it. What does (a lossy strategy, batch
        statistics or random numbers of each replica's own) stands below the table.
        """
        return verify(self, x, y, steps, sample_weight, class_weight)

    @property
    def inexact(self) -> tuple[str, ...]:
        """The plan's notes on why the training that is under way gives other numbers than one device."""
        captured, trained = self._driver.captured, self._driver.trained
        if captured is None or trained is None:
            return ()
        share_memory = self._driver.settings.share_memory
        return planning.explained(self.model, captured.item, trained, share_memory, captured.notes)

    # What compressors keep ---------------------------------------------------------------------------------------

    def compressor_state(self) -> CompressorState | None:
        """What the compressors kept after the last step, nothing maybe; None where its strategy had none."""
        return self._driver.compressor_state()

    def set_compressor_state(self, state: CompressorState | None) -> None:
        """Let the compressors go on from what `compressor_state` returned, or start anew."""
        if state is not None and not isinstance(state, CompressorState):
            raise TypeError(
                "set_compressor_state(state): expected what compressor_state() returned, or None. "
                f"Received: {type(state).__name__}."
            )
        self._driver.require_idle("set the compressors' state")
        self._driver.set_compressor_state(state)


def _made_anew(
    kind: type[DistributedModel], model: Any, settings: dict[str, Any], compressors: CompressorState | None
) -> DistributedModel:
    copied = kind(model, **settings)
    copied.set_compressor_state(compressors)
    return copied
