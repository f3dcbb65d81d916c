"""The part of a `tf.distribute.Strategy` that TensorFlow and its libraries call.

In: calls of Keras's optimizers, of `tf.Variable` and of `scope()`. Out: plain variables, and updates that are traced as
they are: the sum of gradients over the replicas is made when the traced function is distributed.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from autodist_core.loops.distribute.context import OnlyReplica, inside_run
from autodist_core.loops.distribute.values import local_results, reduced
from autodist_core.seams.table import PER_REPLICA


class Extended(tf.distribute.StrategyExtended):
    """What a strategy has besides its public methods.

    >>> from autodist_core.loops.distribute import distribute
    >>> strategy = distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})
    >>> extended = strategy.extended
    >>> type(extended).__name__, len(extended.worker_devices)
    ('Extended', 2)
    >>> variable = tf.Variable(1.0)
    >>> _ = extended.update(variable, lambda each: each.assign_add(2.0))
    >>> float(variable)
    3.0
    """

    def __init__(self, strategy: Any, devices: tuple[str, ...], cluster_resolver: Any) -> None:
        super().__init__(strategy)
        self._strategy = weakref.ref(strategy)
        self._devices = devices
        self._cluster_resolver = cluster_resolver
        self._retrace_functions_for_each_device = False
        self._replicas = len(devices)

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let a function compute inside this block as that of the only replica."""
        self._replicas = 1
        try:
            with OnlyReplica(self._strategy()):
                yield
        finally:
            self._replicas = len(self._devices)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The names of the devices that compute."""
        return self._devices

    parameter_devices = worker_devices

    def value_container(self, value: Any) -> Any:
        """The variable itself: it has one value."""
        return value

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return next_creator(**kwargs)

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether the strategy trains a variable: it trains any."""
        return isinstance(v, tf.Variable)

    def _use_merge_call(self) -> bool:
        return False

    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return _grouped(fn(var, *args, **(kwargs or {})), group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if any(isinstance(value, PER_REPLICA.get()) for value in tf.nest.flatten((args, kwargs))):
            raise ValueError(
                "extended.update: an argument is a value of each replica, but a variable has one value here. Reduce "
                "it first: strategy.reduce(op, value, axis=None)."
            )
        return self._replica_ctx_update(var, fn, args, kwargs, group)

    def update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Call a function that updates variables of no single slot, such as a step counter."""
        del colocate_with
        return _grouped(fn(*args, **(kwargs or {})), group)

    def non_slot_devices(self, var_list: Any) -> Any:
        """Where variables of no single slot are: anywhere."""
        del var_list

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """The sum or the mean over the replicas; every destination is the same, as variables have one value."""
        del destinations, options
        context = inside_run()
        if context is None:
            replicas = len(self._devices)
            return tf.nest.map_structure(lambda each: reduced(reduce_op, each, None, replicas, "reduce_to"), value)
        return context.all_reduce(reduce_op, value)

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any = None) -> Any:
        """The sums or means over the replicas."""
        return [self.reduce_to(reduce_op, value, where, options) for value, where in value_destination_pairs]

    def call_for_each_replica(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Run a function on each replica: the strategy's `run`."""
        strategy = self._strategy()
        assert strategy is not None  # it has this object
        return strategy.run(fn, args, kwargs)

    def _local_results(self, value: Any) -> Any:
        return local_results(value, len(self._devices))

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _in_multi_worker_mode(self) -> bool:
        return False

    should_checkpoint = should_save_summary = True
    experimental_should_init = experimental_enable_get_next_as_optional = True
    """This process has all values, so it saves checkpoints."""
    experimental_require_static_shapes = experimental_between_graph = False
    """Shapes need not be known, and only your program makes a graph."""


def _grouped(result: Any, group: bool) -> Any:
    """The result, or a tuple with it, as there is one device."""
    return result if group else (result,)
