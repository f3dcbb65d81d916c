"""A strategy with `tf.distribute`'s methods, on the engine of `AutoDist`.

In: a loop that calls `scope`, `run`, `reduce` and iterates over distributed datasets. Out: its results, with the
meaning that `tf.distribute` gives these methods: gradients that replicas apply are added up.
"""

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from autodist_core.errors import NotYetError
from autodist_core.loops.autodist import AutoDist
from autodist_core.loops.calls import received
from autodist_core.loops.calls.as_written import as_written
from autodist_core.loops.distribute.context import inside_run, reduced_inside
from autodist_core.loops.distribute.dataset import DistributedDataset, Elements
from autodist_core.loops.distribute.extended import Extended
from autodist_core.loops.distribute.functions import Functions
from autodist_core.loops.distribute.run import OnEachReplica
from autodist_core.loops.distribute.values import gathered, local_results, per_replica, reduced
from autodist_core.plan import Plan
from autodist_core.reports.comparison import require_steps
from autodist_core.resource_spec import ResourceSpec
from autodist_core.training.in_graphs import raised


class ReplicaStrategy(tf.distribute.Strategy):
    """A `tf.distribute.Strategy` whose replicas are those of a resource spec. `autodist_core.distribute` makes it.

    >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS"))
    >>> weight = tf.Variable(0.0)
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum((x * weight - 2 * x) ** 2) / 4
    ...     weight.assign_sub(0.1 * tape.gradient(loss, weight))
    ...     return loss
    >>> for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors([1.0, 1.0, 1.0, 1.0])):
    ...     print(float(strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)))
    4.0
    >>> round(float(weight), 6)
    0.4
    >>> strategy.autodist.close()
    """

    def __init__(self, autodist: AutoDist) -> None:
        self.autodist = autodist
        """The engine: its settings, its session and the variables."""
        devices = tuple(name for name, _ in autodist.resource_spec.replica_devices)
        super().__init__(Extended(self, devices, autodist.resource_spec.cluster_resolver))
        with tf.device("CPU:0"):
            self.order = tf.Variable(0, trainable=False, name="order_of_runs")
            """What every run inside a trace takes, so that TensorFlow orders them."""
        self.failures = Failures(self.order.handle)
        """The errors of runs inside traces."""
        self._functions = Functions(lambda function: OnEachReplica(self, function))

    def scope(self) -> Any:
        """A block in which optimizers are made, and models and variables may be.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}))
        >>> with strategy.scope():
        ...     tf.distribute.get_strategy() is strategy
        True
        """
        refuse_calls_of("keras")
        return super().scope()

    @as_written
    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Run a function on each replica. Gradients that it applies are added up over the replicas.

        Arguments that are values of each replica, as a distributed dataset's elements, are each replica's own; others
        are the same for all. The results are values of each replica. Inside a `tf.function` the call becomes an
        operation of its graph.
        """
        del options
        refuse_calls_of(*KERAS, through="tensorflow")
        positional, named = received.arguments("run", fn, args, kwargs, self.num_replicas_in_sync)
        return self._on_each_replica(fn)(positional, named)

    def _on_each_replica(self, fn: Callable[..., Any]) -> OnEachReplica:
        python = getattr(fn, "python_function", fn)
        found = self._functions.get(python)
        found.python_function = python
        return found

    def plan(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Plan:
        """The table of what is done with each variable when `run` is called so; nothing runs.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS"))
        >>> print(strategy.plan(lambda x: 2 * x, args=(1.0,)).splitlines()[0])
        strategy ..., PS @ 2 replicas
        """
        positional, named = received.arguments("plan", fn, args, kwargs, self.num_replicas_in_sync)
        return self._on_each_replica(fn).plan(positional, named)

    def verify(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, steps: int = 3
    ) -> str:
        """Run a few steps on one device and over all replicas, from the same state, and compare every variable.

        On one device the function is that of a single replica, which gets the batches of all. Afterwards the variables
        have the state that they had before. If variables differ by more than rounding and the plan has no reason, a
        ValueError names these variables.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS"))
        >>> weight = tf.Variable(0.0, name="weight")
        >>> def step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_sum((x * weight - 1) ** 2) / 3
        ...     weight.assign_sub(0.1 * tape.gradient(loss, weight))
        >>> (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors([1.0, 2.0, 3.0]))
        >>> print(strategy.verify(step, args=(batch,), steps=2).splitlines()[-1].partition(";")[0])
        verdict: equal to one device, up to rounding, in the 1 variable of the table
        >>> strategy.autodist.close()
        """
        require_steps(steps)
        positional, named = received.arguments("verify", fn, args, kwargs, self.num_replicas_in_sync)
        return self._on_each_replica(fn).verify(positional, named, steps)

    @as_written
    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """The sum or mean of the replicas' values. With an axis, also of the entries along it: examples count once.

        Inside `run()`, in a function that `merge_call` calls, the value is the replica's own one.
        """
        context = inside_run()
        if context is not None:
            return reduced_inside(context, reduce_op, value, axis)
        return tf.nest.map_structure(lambda each: reduced(reduce_op, each, axis, self.num_replicas_in_sync), value)

    @as_written
    def gather(self, value: Any, axis: int) -> Any:
        """The values of all replicas, one behind the other along an axis.

        Inside `run()`, in a function that `merge_call` calls, the value is the replica's own one.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}))
        >>> (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(5))
        >>> strategy.gather(batch, axis=0).numpy().tolist()
        [0, 1, 2, 3, 4]
        """
        context = inside_run()
        if context is not None:
            return context.all_gather(value, axis)
        return tf.nest.map_structure(lambda each: gathered(each, axis, self.num_replicas_in_sync), value)

    @as_written
    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The value of each replica, in order: all replicas are driven by this process.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}))
        >>> (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(5))
        >>> [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
        [[0, 1, 2], [3, 4]]
        """
        return local_results(value, self.num_replicas_in_sync)

    @as_written
    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> DistributedDataset:
        """A dataset whose batches are split over the replicas. Batches are global ones; the last may be smaller."""
        del options
        refuse_calls_of(*KERAS, through="tensorflow")
        received.require_dataset("experimental_distribute_dataset takes", dataset)
        return DistributedDataset(dataset, Elements(self.num_replicas_in_sync), self.autodist.resource_spec)

    @as_written
    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> DistributedDataset:
        """A dataset whose batches are for one replica each. `dataset_fn` is called once, in this process.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}))
        >>> for each in strategy.distribute_datasets_from_function(lambda context: tf.data.Dataset.range(5).batch(2)):
        ...     print([part.numpy().tolist() for part in strategy.experimental_local_results(each)])
        [[0, 1], [2, 3]]
        [[4], []]
        """
        del options
        method = "distribute_datasets_from_function"
        received.require_callable(method, "dataset_fn", dataset_fn)
        dataset = dataset_fn(tf.distribute.InputContext(1, 0, self.num_replicas_in_sync))
        received.require_dataset(f"{method}: dataset_fn(context) returns", dataset)
        return DistributedDataset(dataset, Elements(self.num_replicas_in_sync, of_replicas=True))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    @as_written
    def experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        """Values of each replica: what `value_fn(context)` returns, which is called for each replica here.

        >>> strategy = ReplicaStrategy(AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}))
        >>> values = strategy.experimental_distribute_values_from_function(lambda each: each.replica_id_in_sync_group)
        >>> [int(value) for value in strategy.experimental_local_results(values)]
        [0, 1]
        """
        method, replicas = "experimental_distribute_values_from_function", self.num_replicas_in_sync
        received.require_callable(method, "value_fn", value_fn)
        contexts = [tf.distribute.experimental.ValueContext(index, replicas) for index in range(replicas)]
        values = [tf.nest.map_structure(partial(received.tensor, method), value_fn(context)) for context in contexts]
        return tf.nest.map_structure(lambda *leaves: per_replica(leaves), *values)


def distribute(resource_spec: Any = None, strategy: Any = None, **settings: Any) -> ReplicaStrategy:
    """Make a strategy with `tf.distribute`'s methods. The arguments are those of `AutoDist`.

    The devices may also be those of a cluster resolver, which is then the strategy's `cluster_resolver`. After the loss
    of a machine, `on_failure="restart"` starts it again; "shrink" is refused.

    >>> with distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "Parallax").scope() as strategy:
    ...     strategy.num_replicas_in_sync
    2
    """
    if settings.get("on_failure") == "shrink":
        raise ValueError(
            "distribute(on_failure='shrink') is not supported: what run() computes depends on the number of replicas, "
            "so fewer replicas would give other numbers. Use 'restart' or 'raise'. AutoDist and DistributedModel take "
            "'shrink': their numbers are those of one device."
        )
    if isinstance(resource_spec, tf.distribute.cluster_resolver.ClusterResolver):
        resource_spec = ResourceSpec.from_cluster_resolver(resource_spec)
    return ReplicaStrategy(AutoDist(resource_spec, strategy, **settings))


KERAS = ("keras", "tf_keras")


def refuse_calls_of(*packages: str, through: str = "") -> None:
    """Raise a NotYetError if code of these packages calls the method that calls this, directly or `through` another.

    Keras calls `run`, and asks for a scope and for distributed datasets, in its own loops only. Its optimizers
    call methods of TensorFlow that ask for the scope, too.

    >>> refuse_calls_of("keras")
    """
    frame = inspect.currentframe()
    while frame is not None and _root(frame.f_globals.get("__name__")) in ("autodist_core", through):
        frame = frame.f_back
    if frame is not None and _root(frame.f_globals.get("__name__")) in packages:
        raise NotYetError(
            "Keras's fit, evaluate, predict and train_on_batch do not run on a strategy of autodist_core.distribute: "
            "they would count the replicas' mean losses alike, however many examples each has. Make the model outside "
            "strategy.scope() and write `dm = autodist_keras.DistributedModel(model, resource_spec, strategy)`, with "
            "the arguments of distribute; dm.compile and dm.fit then give one device's numbers. Or write the loop "
            "yourself, with strategy.run."
        )


def _root(module: Any) -> str:
    return str(module or "").partition(".")[0]


class Failures:
    """The error of the last run inside a trace, until the call of the traced function raises it.

    >>> import tensorflow as tf
    >>> order = tf.Variable(0)
    >>> failures = Failures(order.handle)
    >>> def fails(handle):
    ...     with failures.noted():
    ...         raise ZeroDivisionError("too large")
    >>> failures.raise_them()
    >>> tf.function(lambda: tf.py_function(fails, [order.handle], tf.float32))()
    Traceback (most recent call last):
    ZeroDivisionError: too large
    """

    def __init__(self, order: Any) -> None:
        self._order = order
        self._error: BaseException | None = None
        self._hook = ExitStack()
        self._raises = False
        self._runs = 0
        self._idle = threading.Condition()

    def raise_them(self) -> None:
        """Let calls of traced functions raise errors of runs from now on, as long as this object exists."""
        if not self._raises:
            self._raises, known = True, weakref.ref(self)

            def taken(tensors: Sequence[Any]) -> BaseException | None:
                failures = known()
                return None if failures is None else failures._taken(tensors)

            self._hook.enter_context(raised(taken))
            weakref.finalize(self, self._hook.close)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error that the block raises, which is a run."""
        self._error = None
        with self._idle:
            self._runs += 1
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._idle:
                self._runs -= 1
                self._idle.notify_all()

    def _taken(self, tensors: Sequence[Any]) -> BaseException | None:
        if all(tensor is not self._order for tensor in tensors):
            return None
        # Another operation of the graph may have failed while a run was at work, for which TensorFlow does not wait.
        # A thread of TensorFlow itself may be a part of that run.
        if not isinstance(threading.current_thread(), threading._DummyThread):
            with self._idle:
                self._idle.wait_for(lambda: not self._runs)
        error, self._error = self._error, None
        return error
