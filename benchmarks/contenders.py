"""The trainings that the benchmarks compare: this project's, plain Keras, and its peers.

In: a `Job`, and the `Turns` that the training takes. Each function trains to the end of its epochs. `PEERS` need
programs on the other hosts, too: `follower.py` runs them, and `ROLES` says which.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from turns import Job, Turns
from workloads import BATCH, workload

PLAIN, ONE, TWO, MIRRORED = "plain", "one", "two", "mirrored"
MORE = UNFUSED, REDUCED, SERVED = "unfused", "reduced", "served"
XLA = PLAIN_XLA, ONE_XLA, TWO_XLA = "plain_xla", "one_xla", "two_xla"
OVER_HOSTS, GRADIENTS, BFLOAT16 = "hosts", "hosts_gradients", "hosts_bf16"
PEERS = MULTI_WORKER, PARAMETER_SERVER, TORCH = "multi_worker", "parameter_server", "torch"
ROLES = {MULTI_WORKER: ("worker",), PARAMETER_SERVER: ("worker", "ps"), TORCH: ("worker",)}
"""The programs of a peer on each host; the first worker of those that have no servers is the training itself."""
ALL_REDUCE: dict[str, dict[str, Any]] = {
    GRADIENTS: {"factor_rows": 0},
    BFLOAT16: {"compressor": "HorovodCompressorEF", "wire_dtype": "bfloat16", "factor_rows": 0},
}
"""The options of `AllReduce` with which a contender trains over hosts."""


def _options(job: Job, turns: Turns, keras: Any) -> dict[str, Any]:
    return {
        "epochs": job.epochs, "steps_per_epoch": job.steps, "callbacks": [turns.callback(keras)], "verbose": 0,
    }  # fmt: skip


def plain(job: Job, turns: Turns, xla: bool = False) -> None:
    """Plain Keras on one device."""
    import keras

    chosen = workload(job.workload)
    keras.utils.set_random_seed(0)
    model = chosen.make(keras)
    model.jit_compile = xla
    model.fit(chosen.dataset(), shuffle=False, **_options(job, turns, keras))


def mirrored(job: Job, turns: Turns, devices: Sequence[str] = ()) -> None:
    """Keras under MirroredStrategy, on these devices, or on two logical CPUs."""
    import tensorflow as tf

    if not devices:
        processor = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    chosen = workload(job.workload)
    with tf.distribute.MirroredStrategy(list(devices) or ["CPU:0", "CPU:1"]).scope():
        import keras

        keras.utils.set_random_seed(0)
        model = chosen.make(keras)
    model.fit(chosen.dataset(), shuffle=False, **_options(job, turns, keras))


def distributed(
    job: Job, turns: Turns, replicas: int = 2, xla: bool = False, all_reduce: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """This project: local replicas, or a replica on each host of the job. `all_reduce` are options of `AllReduce`."""
    import keras

    from autodist_core import ResourceSpec
    from autodist_core.strategy import AllReduce
    from autodist_keras import DistributedModel

    chosen = workload(job.workload)
    keras.utils.set_random_seed(0)
    model = chosen.make(keras)
    model.jit_compile = xla
    if all_reduce is not None:
        settings["strategy"] = AllReduce(**all_reduce)
    spec = ResourceSpec.local(cpus=replicas) if job.spec is None else job.spec
    with DistributedModel(model, spec, **settings) as front:
        front.fit(chosen.dataset(), shuffle=False, **_options(job, turns, keras))


def first_step(job: Job, turns: Turns) -> None:
    """Send the seconds from the call of `fit` to the end of the first step, of this project."""
    import keras

    from autodist_keras import DistributedModel

    class First(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                turns.send(time.perf_counter() - began)

    chosen = workload(job.workload)
    with DistributedModel(chosen.make(keras), job.spec) as front:
        began = time.perf_counter()
        front.fit(chosen.dataset(), steps_per_epoch=job.steps, verbose=0, callbacks=[First()])


def multi_worker(job: Job, turns: Turns) -> None:
    """The legacy `tf_keras` under MultiWorkerMirroredStrategy. Keras 3 does not run with it."""
    workers = [f"{host}:{job.port}" for host in job.hosts]
    task = {"type": "worker", "index": job.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf
    import tf_keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chosen = workload(job.workload)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    tf_keras.utils.set_random_seed(0)
    with strategy.scope():
        model = chosen.make(tf_keras)
    model.fit(chosen.dataset().with_options(options), shuffle=False, **_options(job, turns, tf_keras))


def parameter_server(job: Job, turns: Turns) -> None:
    """The legacy `tf_keras` under ParameterServerStrategy. Its workers do not wait for each other."""
    import tensorflow as tf
    import tf_keras

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(tasks(job)), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    chosen = workload(job.workload)
    tf_keras.utils.set_random_seed(0)
    with strategy.scope():
        model = chosen.make(tf_keras)
    # A step of a worker takes a batch of its own: as many steps as hosts take one global batch.
    size = BATCH // len(job.hosts)
    data = tf_keras.utils.experimental.DatasetCreator(lambda context: chosen.dataset(size))
    options = _options(job, turns, tf_keras) | {"steps_per_epoch": job.steps * len(job.hosts)}
    model.fit(data, **options)


def tasks(job: Job) -> dict[str, list[str]]:
    """The tasks of a ParameterServerStrategy: a worker and a server on each host, and the chief on the first one.

    >>> tasks(Job("mlp", steps=8, rounds=1, hosts=("10.0.0.1",), port=4000))["ps"]
    ['10.0.0.1:4002']
    """
    return {
        "chief": [f"{job.hosts[0]}:{job.port}"],
        "worker": [f"{host}:{job.port + 1}" for host in job.hosts],
        "ps": [f"{host}:{job.port + 2}" for host in job.hosts],
    }


def torch(job: Job, turns: Turns) -> None:
    """torch's DistributedDataParallel over gloo."""
    from torch_models import train

    train(job, turns)


CONTENDERS: dict[str, Callable[[Job, Turns], None]] = {
    PLAIN: plain,
    ONE: partial(distributed, replicas=1),
    TWO: distributed,
    MIRRORED: mirrored,
    PLAIN_XLA: partial(plain, xla=True),
    ONE_XLA: partial(distributed, replicas=1, xla=True),
    TWO_XLA: partial(distributed, xla=True),
    UNFUSED: partial(distributed, fused_kernels=False),
    REDUCED: partial(distributed, strategy="AllReduce", share_memory=False),
    SERVED: partial(distributed, strategy="PSLoadBalancing", share_memory=False),
    OVER_HOSTS: distributed,
    GRADIENTS: partial(distributed, all_reduce=ALL_REDUCE[GRADIENTS]),
    BFLOAT16: partial(distributed, all_reduce=ALL_REDUCE[BFLOAT16]),
    MULTI_WORKER: multi_worker,
    PARAMETER_SERVER: parameter_server,
    TORCH: torch,
}
"""The function of each contender."""
