"""DistributedModel: a Keras model whose `fit` runs over all devices of a cluster.

This module is what a user holds, and where the flow begins. A Keras model and settings come in. Histories, predictions,
plans and saved files go out. Keras's own loops run; for each batch they call a distributed step of the `Driver`.
Between two calls the wrapped model is a plain Keras model that holds the trained state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from autodist_core.errors import amount
from autodist_core.plan import Plan
from autodist_core.reports.time_report import TimeReport
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.training import SETTINGS, CompressorState, Settings
from autodist_keras import checks
from autodist_keras.callbacks.resume import resumable
from autodist_keras.capture.hooks import undone_if_refused
from autodist_keras.distribution import understood
from autodist_keras.huge_files import huge_values_on_disk
from autodist_keras.keras_methods import Forwarding, FromConfig, call_keras, keras_loop, shown_as_keras, wrap_again
from autodist_keras.reports import model_plan
from autodist_keras.reports.explain import LastFit, explain
from autodist_keras.reports.own_fit import of_batches
from autodist_keras.reports.verify import verify
from autodist_keras.training.driver import Driver

_CALLED = (
    "A call of a DistributedModel calls its Keras model. Where a function that makes a model is expected, as by "
    "keras.wrappers.SKLearnRegressor, pass a function that returns the DistributedModel."
)


class DistributedModel(Forwarding):
    """Train a Keras model over several devices with the methods that the model already has.

    Args:
        model: Any Keras 3 model (TensorFlow backend): built or not, compiled or not.
        resource_spec: The devices: a path to a YAML file, a dict, a `ResourceSpec`, a `DeviceMesh`, `DataParallel` or
            `ModelParallel` of `keras.distribution`, or None for this machine.
        strategy: A strategy builder, its name, a finished `Strategy`, or None for all-reduce (dense variables) and
            parameter servers (sparse ones).
        share_memory: Whether replicas on CPU devices of one machine may compute on one copy of the weights and update
            it once. `False` gives every replica its own, as on separate devices; otherwise only a strategy that needs
            it does, for a compressor, staleness or asynchronous updates.
        fused_kernels: Whether an optimizer (SGD, Adam or AdamW) and batch normalization compute in
            TensorFlow's kernel where one has their formula. It is faster, and gives the same numbers up to rounding.
            None means True for several replicas and False for one, which then equals plain Keras bit by bit.
        on_failure: What happens when another machine is lost in the middle of a call: "raise" ends the call with an
            error and keeps what was trained, "restart" starts all machines again, "shrink" goes on without the lost
            ones; both go on from the last consistent state, and no example is counted twice.
        lost_after: Seconds of silence after which another machine counts as lost. A machine whose agent ends counts as
            lost at once.
        tunnelled: Whether all data between machines goes through ssh and this program, encrypted and slower.
        backup_every: Seconds of training after which the state is copied to this program, so that the loss of a machine
            takes no more; 0 copies it after each step. None takes at most 2 % of the time for that.
        keep_state: Where large values are between two calls: in the "model", or on the "machines" until somebody reads
            one, copied as `backup_every` says. None means "model" over several machines for a model with values that
            this program has the memory for, and else "machines".

    Every setting can also be set later: `dm.strategy = "PS"`. The next `fit` goes on from the model's state.

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

    # Declared for type checkers and editors. `__getattr__` returns the values.
    model: keras.Model
    resource_spec: ResourceSpec
    strategy: StrategyBuilder
    share_memory: bool | None
    fused_kernels: bool | None
    on_failure: str
    lost_after: float
    tunnelled: bool
    backup_every: float | None
    keep_state: str | None

    def __init__(
        self, model: Any, resource_spec: Any = None, strategy: Any = None, share_memory: bool | None = None,
        fused_kernels: bool | None = None, on_failure: str = "raise", lost_after: float = 60.0, tunnelled: bool = False,
        backup_every: float | None = None, keep_state: str | None = None,
    ) -> None:
        self.model = checks.keras_model(model)
        resource_spec, strategy = understood(self.model, resource_spec, strategy)
        settings = Settings(
            resource_spec, strategy, share_memory, fused_kernels, on_failure, lost_after, tunnelled,
            backup_every, keep_state,
        )
        self._driver = Driver(self.model, settings)
        self._replacements: set[str] = set()
        """The names of methods that the user replaced on the model and whose replacement runs now."""
        self._last_fit: LastFit | None = None

    # Keras's surface ---------------------------------------------------------------------------------------------

    @shown_as_keras
    def compile(self, *args: Any, strategy: Any = None, **kwargs: Any) -> None:
        """Call Keras's `compile`, and set another strategy if one is given. The weights stay.

        If the arguments or the strategy are refused, model and settings stay as they were.

        >>> dm = DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        >>> dm.compile("sgd", "mse", strategy="PS")
        >>> type(dm.strategy).__name__
        'PS'
        """
        settings = self._driver.settings
        if strategy is not None:
            settings = replace(settings, strategy=strategy)
        self._driver.require_idle()
        with undone_if_refused(self.model):
            self._call_model("compile", *args, **kwargs)
            self._driver.change(settings)

    @shown_as_keras
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `fit`. Every batch is split over the replicas.

        >>> import numpy as np
        >>> x, y = np.ones((8, 3)), np.zeros((8, 1))
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
        >>> model.compile("sgd", "mse", metrics=["mae"])
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     history = dm.fit(x, y, batch_size=4, epochs=2, verbose=0)
        >>> {name: len(values) for name, values in history.history.items()}
        {'loss': 2, 'mae': 2}
        """
        self._last_fit = LastFit(self.model, args, kwargs)
        with self._driver.looping("fit", args, kwargs), resumable(self, args, kwargs) as (positional, named):
            return self._call_model("fit", *positional, **named)

    @keras_loop
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `evaluate`. Losses and metrics are those of the whole data.

        >>> import numpy as np
        >>> x, y = np.ones((5, 3)), np.zeros((5, 1))
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     dm.evaluate(x, y, batch_size=5, verbose=0)
        9.0
        """

    @keras_loop
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `predict`. The results are in the order of the data.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     dm.predict(np.array([[1.0], [2.0], [3.0]]), batch_size=3, verbose=0).tolist()
        [[1.0], [2.0], [3.0]]
        """

    @keras_loop
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `train_on_batch`. The batch is split over the replicas.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     print(float(dm.train_on_batch(np.ones((4, 3)), np.zeros((4, 1)))))
        9.0
        """

    @keras_loop
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `test_on_batch`. The batch is split over the replicas.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     print(float(dm.test_on_batch(np.ones((4, 3)), np.zeros((4, 1)))))
        9.0
        """

    @keras_loop
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `predict_on_batch`. The batch is split over the replicas.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     dm.predict_on_batch(np.array([[1.0], [2.0]])).tolist()
        [[1.0], [2.0]]
        """

    @shown_as_keras
    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Run Keras's `load_weights`. A huge variable of a model without values goes from the file to the machines.

        >>> import tempfile
        >>> dm = DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dm.save_weights(f"{folder}/model.weights.h5")
        ...     dm.load_weights(f"{folder}/model.weights.h5")
        """
        with huge_values_on_disk():
            self._call_model("load_weights", *args, **kwargs)

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """Let the calls inside a `with` block be parts of one call, whose state comes back to the model at its end.

        A loop over `train_on_batch` then costs what the same steps in one `fit` cost. Whoever looks at a variable sees
        its current value, and what is changed counts from the next step on, as in callbacks. When a machine is lost,
        the block keeps what one `fit` keeps.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm, dm.one_call():
        ...     losses = [dm.train_on_batch(np.ones((4, 3)), np.zeros((4, 1))) for _ in range(3)]
        >>> int(model.optimizer.iterations.numpy())
        3
        """
        with self._driver.running(None):
            yield

    def _call_model(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return call_keras(self, name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        try:
            return self.model(*args, **kwargs)
        except TypeError as error:
            if not args:
                error.add_note(_CALLED)
            raise

    from_config = FromConfig()

    def __repr__(self) -> str:
        # Keras shows this in the errors of functions that take a model.
        shown = f"{self.model!r}, {type(self.strategy).__name__}, {amount(self._driver.settings.replicas, 'replica')}"
        return f"<DistributedModel of {shown}; its keras.Model is dm.model>"

    def __reduce__(self) -> Any:
        """A copy gets the model, the settings and the compressors' state. It gets no session."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        return wrap_again, (type(self), self.model, settings, self.compressor_state())

    def __enter__(self) -> DistributedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the devices and the other machines. The model keeps its state; a later `fit` goes on from that state.

        >>> DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])).close()
        """
        self._driver.close()

    # Planning ----------------------------------------------------------------------------------------------------

    def plan(
        self, x: Any = ..., y: Any = None, sample_weight: Any = None, class_weight: Any = None, **of_fit: Any
    ) -> Plan:
        """Return the table of what is done with each variable, before anything runs.

        Without data, the model must be built, and the plan assumes that the tables of Embedding layers have sparse
        gradients. With a batch (`plan(x, y)`) or after a `fit`, the captured step says which gradients are sparse. Data
        may have any form that `fit` takes. Arrays are one batch. The first batch of a dataset or generator counts; a
        generator does not give that batch again. A captured step that `fit` would refuse is refused here, too.
        A model whose `fit` has other arguments gets these by name, as `dm.plan(dataset=...)`.

        The plan is a string, and a notebook shows it as a table.

        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
        >>> dm = DistributedModel(model, ResourceSpec.local(cpus=2), "PS", share_memory=False)
        >>> print(*dm.plan().splitlines()[:6], sep="\\n")
        strategy ..., PS @ 2 replicas
          replica localhost:CPU:0
          replica localhost:CPU:1
          dense/kernel : f32[3,1]  ps(localhost:CPU:0)  12 B  24 B/step
          dense/bias   : f32[1]    ps(localhost:CPU:0)   4 B   8 B/step
          total: 2 variables, 16 B; 32 B travel between devices per step
        """
        given = of_batches(self.model, x=x, y=y, sample_weight=sample_weight, class_weight=class_weight, **of_fit)
        return model_plan.plan_of(self, given)

    def verify(
        self, x: Any = ..., y: Any = None, steps: int = 3, sample_weight: Any = None, class_weight: Any = None,
        **of_fit: Any,
    ) -> str:
        """Train a few steps on one device and on all replicas, from the same state, and compare every variable.

        Data may have any form that `fit` takes. Arrays are one batch, and every step trains on that batch. From a
        dataset or generator, each step takes one batch. Afterwards the model has the state that it had before.

        The result is a table, then the plan's reasons for other numbers, such as a lossy strategy, then the verdict. If
        variables differ by more than rounding and the plan has no reason, a ValueError names these variables. Metrics
        are not compared: the plan's notes on them stand below the table, too.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     print(dm.verify(np.ones((4, 3)), np.zeros((4, 1)), steps=2).splitlines()[-1].partition(";")[0])
        verdict: equal to one device, up to rounding, in the 3 variables of the table
        """
        given = of_batches(self.model, x=x, y=y, sample_weight=sample_weight, class_weight=class_weight, **of_fit)
        return verify(self, given, steps)

    def explain(
        self, x: Any = ..., y: Any = None, batch_size: int | None = None, steps: int = 20, sample_weight: Any = None,
        class_weight: Any = None, **of_fit: Any,
    ) -> TimeReport:
        """Measure where the time of a training step goes, on each machine, and say what to change first.

        Without data, it takes those of the last `fit`, if your program still keeps them. The steps run without your
        callbacks and shuffling, and the model gets its state back. The report is a string, with `table` as numbers.

        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        ...     report = dm.explain(np.ones((64, 3)), np.zeros((64, 1)), batch_size=4)
        >>> print(report.splitlines()[0])
        a step of 4 examples takes ... ms on 2 replicas (measured in 20 steps)
        """
        named = {"batch_size": batch_size, "sample_weight": sample_weight, "class_weight": class_weight}
        return explain(self, self._last_fit, of_batches(self.model, x=x, y=y, **named, **of_fit), steps)

    @property
    def inexact(self) -> tuple[str, ...]:
        """The plan's notes on why the current training gives other numbers than one device.

        >>> DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])).inexact
        ()
        """
        return model_plan.inexact(self)

    # The compressors' state --------------------------------------------------------------------------------------

    def compressor_state(self) -> CompressorState | None:
        """Return the compressors' state after the last step; None if the strategy has no compressors.

        >>> import numpy as np
        >>> from autodist_core.strategy import AllReduce
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, name="dense")])
        >>> model.compile("sgd", "mse")
        >>> lossy = AllReduce(compressor="HorovodCompressorEF")
        >>> with DistributedModel(model, ResourceSpec.local(cpus=2), lossy) as dm:
        ...     history = dm.fit(np.ones((4, 3)), np.zeros((4, 1)), verbose=0)
        ...     state = dm.compressor_state()
        ...     dm.set_compressor_state(state)
        >>> sorted(state.values)
        ['compressor/error/dense/kernel@replica0', 'compressor/error/dense/kernel@replica1']
        """
        return self._driver.training.compressor_state()

    def set_compressor_state(self, state: CompressorState | None) -> None:
        """Set the compressors' state to one that `compressor_state` returned. None lets the compressors start anew.

        >>> dm = DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        >>> dm.set_compressor_state(dm.compressor_state())
        """
        checks.compressor_state(state)
        self._driver.require_idle("set the compressors' state")
        self._driver.training.set_compressor_state(state)
