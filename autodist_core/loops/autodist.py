"""AutoDist: training loops without `fit`, over all devices of a cluster.

In: a resource spec, a strategy, and Python functions that a user marks. Out: functions that run over all replicas.
Keras is not needed: variables may be plain `tf.Variable`s, and updates may be written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, overload

from autodist_core.errors import amount
from autodist_core.loops.calls.graph_mode import graph_mode_iterators
from autodist_core.loops.engine import Engine
from autodist_core.loops.function import Function
from autodist_core.resource_spec import ResourceSpec
from autodist_core.training import Settings


class AutoDist:
    """Run the functions of a training loop over several devices.

    Args:
        resource_spec: The devices: a path to a YAML file, a dict, a `ResourceSpec`, or None for this machine.
        strategy: A strategy builder, its name, a finished `Strategy`, or None for all-reduce (dense variables) and
            parameter servers (sparse ones).
        share_memory: Whether replicas on CPU devices of one machine may compute on one copy of the weights.
        on_failure: What happens when another machine is lost: "raise", "restart" or "shrink".
        lost_after: Seconds of silence after which another machine counts as lost.
        tunnelled: Whether all data between machines goes through ssh and this program.
        backup_every: Seconds after which the state is copied to this program; None takes at most 2 % of the time.

    `DistributedModel` describes these settings.

    >>> import tensorflow as tf
    >>> from autodist_core import ResourceSpec
    >>> distributed = AutoDist(ResourceSpec.local(cpus=2), "PS")
    >>> weight = tf.Variable(0.0)
    >>> @distributed.function
    ... def train_step(x, y):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean((x * weight - y) ** 2)
    ...     weight.assign_sub(0.1 * tape.gradient(loss, weight))
    ...     return loss
    >>> float(train_step(tf.constant([1.0, 2.0]), tf.constant([2.0, 4.0])))
    10.0
    >>> float(weight)
    1.0
    >>> distributed.close()
    """

    def __init__(
        self, resource_spec: Any = None, strategy: Any = None, share_memory: bool | None = None,
        on_failure: str = "raise", lost_after: float = 60.0, tunnelled: bool = False,
        backup_every: float | None = None,
    ) -> None:
        settings = Settings(
            resource_spec, strategy, share_memory, False, on_failure, lost_after, tunnelled,
            backup_every,
        )
        self.engine = Engine(settings)
        """What the marked functions share."""

    @contextmanager
    def scope(self) -> Iterator[AutoDist]:
        """Let `tf.compat.v1.data.make_one_shot_iterator` give batches that a marked function draws when it is called.

        Nothing else is different inside. Variables and models may be made inside or outside.

        >>> import tensorflow as tf
        >>> distributed = AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})
        >>> with distributed.scope():
        ...     iterator = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2))
        ...     batch = iterator.get_next()
        ...     double = distributed.function(lambda x: 2 * x)
        ...     print(double(batch).numpy(), double(batch).numpy())
        [0 2] [4 6]
        >>> distributed.close()
        """
        with graph_mode_iterators():
            yield self

    @overload
    def function(self, function: Callable[..., Any], *, whole: Collection[str] = ()) -> Function: ...

    @overload
    def function(
        self, function: None = None, *, whole: Collection[str] = ()
    ) -> Callable[[Callable[..., Any]], Function]: ...

    def function(self, function: Any = None, *, whole: Collection[str] = (), **others: Any) -> Any:
        """Mark a function: each call runs over all replicas, on a slice of each batch among the arguments.

        A function that applies gradients is a training step. Another one is an evaluation or a prediction. All
        functions of one `AutoDist` share one state.

        `whole` names the parameters that every replica gets whole, although they are arrays: weights of classes, say.
        Where the function takes `**named`, it may name keywords as well.

        >>> import tensorflow as tf
        >>> distributed = AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})
        >>> @distributed.function(whole=["scale"])
        ... def scaled(x, scale):
        ...     return x * scale
        >>> scaled(tf.ones([3, 2]), tf.constant([1.0, 2.0])).numpy().tolist()
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
        >>> distributed.close()
        """
        if others:
            raise TypeError(
                f"AutoDist.function takes `whole` besides the function. Received: {', '.join(others)}. Leave it out: a "
                "marked function is traced once for each kind of arguments, for batches of any size, and its `if` and "
                "`while` on tensors become operations of the graph. For XLA, mark a function that calls a "
                "tf.function(jit_compile=True)."
            )
        if function is None:
            return lambda marked: self.function(marked, whole=whole)
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self.function(function.__func__, whole=whole))
        return Function(self.engine, function, whole)

    @property
    def resource_spec(self) -> ResourceSpec:
        """The devices.

        >>> AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}).resource_spec.num_cpus
        2
        """
        return self.engine.training.settings.resource_spec

    def close(self) -> None:
        """Free the devices and the other machines. The variables keep their values; a later call goes on from these.

        >>> AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}).close()
        """
        with self.engine.claimed("close"):
            self.engine.close()

    def __enter__(self) -> AutoDist:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        settings = self.engine.training.settings
        return f"<AutoDist, {type(settings.strategy).__name__}, {amount(settings.replicas, 'replica')}>"
