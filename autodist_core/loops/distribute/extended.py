"""The part of a `tf.distribute.Strategy` that TensorFlow and its libraries call.

In: calls of Keras's optimizers, of `tf.Variable` and of `scope()`. Out: plain variables, and updates that are traced as
they are: the sum of gradients over the replicas is made when the traced function is distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.loops.distribute.context import inside_run


class Extended(tf.distribute.StrategyExtended):
    """What a strategy has besides its public methods."""

    def __init__(self, strategy: Any, devices: tuple[str, ...], cluster_resolver: Any) -> None:
        super().__init__(strategy)
        self._devices = devices
        self._cluster_resolver = cluster_resolver
        self._retrace_functions_for_each_device = False

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices)

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
        if inside_run() is None:
            raise CaptureError(
                "extended.update outside run() is not supported: variables are plain ones here, with one value each. "
                "Assign to the variable itself, or update it in a function that run() calls."
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
        """Inside run(), the sum or the mean over the replicas."""
        del destinations, options
        context = inside_run()
        if context is None:
            raise CaptureError("extended.reduce_to is not supported: call the strategy's reduce(op, value, axis).")
        return context.all_reduce(reduce_op, value)

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any = None) -> Any:
        """Inside run(), the sums or means over the replicas."""
        return [self.reduce_to(reduce_op, value, where, options) for value, where in value_destination_pairs]

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _in_multi_worker_mode(self) -> bool:
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process saves checkpoints: it has all values."""
        return True

    should_save_summary = should_checkpoint

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether shapes must be known: they need not."""
        return False


def _grouped(result: Any, group: bool) -> Any:
    """The result, or the tuple with the result of each device, of which there is one."""
    return result if group else (result,)
