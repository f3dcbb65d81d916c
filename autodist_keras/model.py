"""DistributedModel: a Keras model whose `fit` runs over all devices of a cluster.

Keras's own loops run; what they call for each batch is a distributed step. Between two calls the wrapped model is a
plain Keras model that holds the trained state.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from typing import Any

import keras

from autodist_core.cluster import Fleet, stand_by_unless_chief
from autodist_core.compiler import CompiledStrategy, StrategyCompiler
from autodist_core.errors import NodeLostError, SessionError
from autodist_core.graph_item import GraphItem
from autodist_core.kernel import Placement, inference, place
from autodist_core.kernel.tasks import Tasks
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime import AnySession, DistributedSession, LastingSession
from autodist_core.strategy.base import StrategyBuilder
from autodist_keras import checks, planning
from autodist_keras.batches import first_batch
from autodist_keras.compressor_state import CompressorState
from autodist_keras.functions import StepFunction, on_batches, on_iterator, read_batch
from autodist_keras.hooks import hook
from autodist_keras.interrupts import once
from autodist_keras.losses import said_of_own
from autodist_keras.settings import OF_THE_CLUSTER, SETTINGS, refuse_misspelt
from autodist_keras.state import State
from autodist_keras.tracing import Captured

_OWN = (
    "model", *SETTINGS, "_functions", "_state", "_trained", "_compiled_as", "_depth", "_thread", "_compressors",
    "_fleet",
)  # fmt: skip


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
        self.resource_spec = resource_spec
        stand_by_unless_chief(self.resource_spec)
        self.strategy = strategy
        self.share_memory = share_memory
        self.fused_updates = fused_updates
        self.on_failure = on_failure
        self.lost_after = lost_after
        self.tunnelled = tunnelled
        self._fleet = self._new_fleet()
        self._functions: dict[str, StepFunction] = {}
        self._state: State | None = None
        self._trained: CompiledStrategy | None = None
        self._compiled_as: checks.Identity | None = None
        self._depth = 0
        self._thread = 0
        self._compressors: CompressorState | None = None

    # Keras's surface ---------------------------------------------------------------------------------------------

    def compile(self, *args: Any, strategy: Any = None, **kwargs: Any) -> None:
        """Keras's `compile`, and optionally another strategy; the weights stay."""
        strategy = self.strategy if strategy is None else SETTINGS["strategy"](strategy)
        self._forget()
        self._keras("compile")(*args, **kwargs)
        self.strategy = strategy

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `fit`, over all replicas."""
        with self._distributed():
            return self._keras("fit")(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `evaluate`, over all replicas."""
        with self._distributed():
            return self._keras("evaluate")(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `predict`, over all replicas; results in the order of the data."""
        with self._distributed():
            return self._keras("predict")(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `train_on_batch`; the batch is split over the replicas."""
        with self._distributed():
            return self._keras("train_on_batch")(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `test_on_batch`; the batch is split over the replicas."""
        with self._distributed():
            return self._keras("test_on_batch")(*args, **kwargs)

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's `predict_on_batch`; the batch is split over the replicas."""
        with self._distributed():
            return self._keras("predict_on_batch")(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keras's `save`: the file is that of the plain model, and holds the compressors' state besides."""
        self._keras("save")(*args, **kwargs)
        state = self.compressor_state()
        if state is not None:
            state.write(args[0] if args else kwargs["filepath"])

    def load_compressor_state(self, path: str | PathLike[str]) -> None:
        """Go on with what the compressors of a strategy had kept when `save` wrote this file."""
        if self._depth:
            raise SessionError("this DistributedModel is training: load the compressors' state afterwards.")
        self.set_compressor_state(CompressorState.read(path))

    def _keras(self, name: str) -> Any:
        """The model's method of that name, not this wrapper's, which `model.fit = dm.fit` puts in its place."""
        found = getattr(self.model, name)
        ours = getattr(found, "__self__", None) is self
        return partial(getattr(type(self.model), name), self.model) if ours else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self.model, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.model)})

    def __repr__(self) -> str:
        replicas = len(self.resource_spec.replica_devices)
        return f"<DistributedModel of {self.model!r}, {type(self.strategy).__name__}, {replicas} replicas>"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS:
            value = SETTINGS[name](value)
            if "_functions" in vars(self):
                self._forget()
        if name == "model" and name in vars(self):
            raise AttributeError("a DistributedModel keeps its model: wrap the other one, DistributedModel(other, ...)")
        if name in _OWN:
            object.__setattr__(self, name, value)
            if name in OF_THE_CLUSTER and "_fleet" in vars(self):
                self._fleet.close()
                self._fleet = self._new_fleet()
        else:
            refuse_misspelt(name, self.model)
            setattr(self.model, name, value)

    def __reduce__(self) -> Any:
        """What a copy is made of: the model, the settings and what compressors kept, but no session."""
        return _made_anew, (self.model, {name: getattr(self, name) for name in SETTINGS}, self.compressor_state())

    def __enter__(self) -> DistributedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the devices. The model keeps its state, and a later `fit` starts anew from it."""
        try:
            self._forget()
        finally:
            self._fleet.close()

    # Planning ----------------------------------------------------------------------------------------------------

    def plan(self, *data: Any) -> str:
        """The table of what is done with each variable, before anything runs.

        Without data, the model must be built and the tables of Embedding layers are taken to be sparse; with a batch
        (`plan(x, y)`) or after a `fit`, the captured step says which gradients are.
        """
        checks.batched(self.model, len(self.resource_spec.replica_devices))
        captured = self._captured_for(first_batch("plan", self.model, *data)) if data else self._captured()
        item = captured.item if captured else planning.assumed_item(self.model)
        remarks = captured.remarks if captured else said_of_own(self.model)
        return planning.plan(
            self.model, item, self._compile_strategy(item), self.share_memory, self._fuses, remarks
        )

    def verify(self, x: Any, y: Any = None, steps: int = 3) -> str:
        """Train a few steps on one device and on all replicas, from the same state, and compare every variable.

        Takes the arrays of one batch, which every step trains on, or a dataset, of which each step takes a batch. The
        model's state is as before afterwards. Returns a table; raises a ValueError if variables differ by more than
        rounding and nothing in the plan explains it. What does (a lossy strategy, batch statistics or random numbers of
        each replica's own) stands below the table.
        """
        from autodist_keras.verify import verify

        return verify(self, x, y, steps)

    @property
    def inexact(self) -> tuple[str, ...]:
        """The plan's notes on why the training that is under way gives other numbers than one device."""
        captured = self._captured()
        if captured is None or self._trained is None:
            return ()
        return planning.explained(self.model, captured.item, self._trained)

    @property
    def _fuses(self) -> bool:
        several = len(self.resource_spec.replica_devices) > 1
        return several if self.fused_updates is None else self.fused_updates

    def _captured_for(self, data: Any) -> Captured:
        """The training step, captured for a batch as `train_step` gets it; nothing runs."""
        checks.compiled(self.model)
        checks.optimizer(self.model)
        batch = read_batch(data)
        function = StepFunction(self.model, self.model.train_step, False, self._open, self._fuses)
        return function.capture(batch, function.specs_for(batch))

    def _captured(self) -> Captured | None:
        train = self._functions.get("train")
        return train.captured if train is not None else None

    def _compile_strategy(self, item: GraphItem) -> CompiledStrategy:
        return StrategyCompiler(item, self.resource_spec).compile(self.strategy.build(item, self.resource_spec))

    # What compressors keep ---------------------------------------------------------------------------------------

    def compressor_state(self) -> CompressorState | None:
        """What the compressors kept after the last step, nothing maybe; None where the strategy has none."""
        if self._state is not None and self._trained is not None:
            values = self._state.session.read_kept()
            return CompressorState(self._trained.id, values) if self._trained.compresses else None
        return self._compressors

    def set_compressor_state(self, state: CompressorState | None) -> None:
        """Let the compressors go on from this state, or start anew."""
        if self._state is not None and self._trained is not None:
            self._state.session.load_kept(state.for_strategy(self._trained.id) if state is not None else {})
        else:
            self._compressors = state

    # Running -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _distributed(self) -> Iterator[None]:
        """Keras calls our step functions while this is open; before and after, it is a plain model."""
        if self._depth:
            if self._thread != threading.get_ident():
                raise SessionError("this DistributedModel is training in another thread; one call at a time.")
            yield
            return
        with once(), self._own_functions():
            yield

    @contextmanager
    def _own_functions(self) -> Iterator[None]:
        identity = checks.identity_of_compile(self.model)
        if identity != self._compiled_as or self._is_lost:
            self._forget()
            self._compiled_as = identity
        if self._state is not None:
            self._state.resume()
        names = ("train_function", "test_function", "predict_function")
        before = {name: getattr(self.model, name) for name in names}
        self._depth += 1
        self._thread = threading.get_ident()
        try:
            with ExitStack() as hooks:
                hooks.enter_context(checks.claimed(self.model, self))
                for mode in ("train", "test", "predict"):
                    hooks.enter_context(hook(self.model, f"make_{mode}_function", self._maker(mode)))
                yield
        finally:
            self._depth -= 1
            try:
                if self._state is not None:
                    self._pull()
            finally:
                if self._state is not None:
                    self._state.release()
                for name, function in before.items():
                    object.__setattr__(self.model, name, function)
                if self._is_lost:
                    # Nobody waits for the other nodes any more.
                    self._forget()
                    self._fleet.close()

    @property
    def _is_lost(self) -> bool:
        """Whether a node is gone, and with it what the session was."""
        return self._fleet.lost or (self._state is not None and self._state.session.lost)

    def _pull(self) -> None:
        """Bring the state back to the model, also where replicas that ran ahead have failed meanwhile."""
        assert self._state is not None
        try:
            self._state.session.settle()
        finally:
            self._state.pull_all(again=self._state.session.lost)

    def _maker(self, mode: str) -> Callable[..., None]:
        def make(force: bool = False) -> None:
            del force
            function = self._functions.get(mode)
            if function is None:
                if mode == "train":
                    checks.optimizer(self.model)
                    checks.say_what_is_not_done(self.model, self.resource_spec)
                step = getattr(self.model, f"{mode}_step")
                function = self._functions[mode] = StepFunction(
                    self.model, step, mode == "predict", self._open, self._fuses,
                    len(self.resource_spec.replica_devices) == 1,
                )
            run = on_batches(function) if mode == "predict" else on_iterator(function, self.model)
            object.__setattr__(self.model, f"{mode}_function", run)

        return make

    def _open(self, item: GraphItem) -> State:
        """The state in which a captured step runs: the training's where there is one."""
        if len(self.resource_spec.nodes) > 1 or self._fleet.cluster is not None:
            self._fleet.start()
        else:
            checks.local_spec(self.resource_spec)
        checks.batched(self.model, len(self.resource_spec.replica_devices))
        if item.gradients and self._trained is None:
            # A strategy that is refused here leaves everything as it was, so that the next call refuses it too.
            trained = self._compile_strategy(item)
            if self._state is not None:
                self._state.pull_all()
                self._state.release()
                self._state.session.close()
                self._functions = {"train": self._functions["train"]}
            self._trained, self._state = trained, State(self._session(lambda: self._placement(item)))
            before, self._compressors = self._compressors, None
            self.set_compressor_state(before)
        if self._state is None:
            self._state = State(self._session(lambda: inference(checks.replicas(self.resource_spec), self._tasks)))
        return self._state

    def _new_fleet(self) -> Fleet:
        return Fleet(self.resource_spec, self.on_failure, self.lost_after, self.tunnelled)

    def _restart(self, error: NodeLostError) -> None:
        self._fleet.restart(error)
        object.__setattr__(self, "resource_spec", self._fleet.spec)

    def _session(self, placement: Callable[[], Placement]) -> AnySession:
        """A session here, or one over all nodes, which is made again where they are."""
        fleet = self._fleet
        if fleet.cluster is None:
            return DistributedSession(placement())
        restart = None if self.on_failure == "raise" else self._restart
        return LastingSession(
            lambda: DistributedSession(placement(), fleet.cluster), fleet.renew, restart, fleet.progress
        )

    def _placement(self, item: GraphItem) -> Placement:
        return place(item, self._compile_strategy(item), self.share_memory, self._tasks)

    @property
    def _tasks(self) -> Tasks:
        cluster = self._fleet.cluster
        return Tasks(cluster.job, cluster.addresses) if cluster is not None else Tasks()

    def _forget(self) -> None:
        """Drop every captured step and the session."""
        if self._depth:
            raise SessionError("this DistributedModel is training: compile, close or change its settings afterwards.")
        if self._state is not None:
            self._compressors = self.compressor_state()
            self._state.release()
            self._state.session.close()
        self._functions, self._state, self._trained, self._compiled_as = {}, None, None, None


def _made_anew(model: Any, settings: dict[str, Any], compressors: CompressorState | None) -> DistributedModel:
    copied = DistributedModel(model, **settings)
    copied.set_compressor_state(compressors)
    return copied


def _show_signatures() -> None:
    """Let `help` and editors show Keras's parameters where calls go to Keras."""
    on_batch = ("train_on_batch", "test_on_batch", "predict_on_batch")
    for name in ("fit", "evaluate", "predict", "save", "compile", *on_batch):
        method, signature = vars(DistributedModel)[name], inspect.signature(getattr(keras.Model, name))
        if name == "compile":
            added = inspect.Parameter("strategy", inspect.Parameter.KEYWORD_ONLY, default=None)
            signature = signature.replace(parameters=[*signature.parameters.values(), added])
        method.__signature__ = signature


_show_signatures()
