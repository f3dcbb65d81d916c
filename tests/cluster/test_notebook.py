"""A notebook trains over hosts: in a real Jupyter kernel, interrupted as its stop button does, and ended with it."""

import os

import pytest
from jupyter_client.manager import KernelManager

from tests.support.programs import ROOT

SETUP = """
import keras, numpy as np
from autodist_keras import DistributedModel
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", "mse")
x, y = np.ones((400000, 8), "float32"), np.ones((400000, 1), "float32")
dm = DistributedModel(model, {spec}, strategy="AllReduce")
dm.fit(x[:64], y[:64], batch_size=8, verbose=0)
print("ready", int(model.optimizer.iterations.numpy()))
"""
LONG = """
def say(batch, logs):
    if batch == 20:
        print("training", flush=True)

say = keras.callbacks.LambdaCallback(on_train_batch_end=say)
dm.fit(x, y, batch_size=8, epochs=9, verbose=0, callbacks=[say])
"""
AGAIN = "dm.fit(x[:64], y[:64], batch_size=8, verbose=0); print('again')"


@pytest.fixture
def kernel(this_python):
    manager = KernelManager(kernel_name=this_python)
    manager.start_kernel(cwd=str(ROOT), env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client, code, interrupt=None):
    """What a cell prints, and the name of its error; it is interrupted when it first prints something."""
    printed = []
    message = client.execute(code)
    while True:
        said = client.get_iopub_msg(timeout=60)
        if said["parent_header"].get("msg_id") != message:
            continue
        if said["msg_type"] == "stream" and said["content"]["name"] == "stdout":
            printed.append(said["content"]["text"])
            if interrupt is not None and len(printed) == 1:
                interrupt()
        elif said["msg_type"] == "error":
            printed.append(said["content"]["ename"])
        elif said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            return "".join(printed)


def test_a_notebook_trains_is_interrupted_trains_again_and_ends(network, kernel, known_hosts, nothing_stays):
    manager, client = kernel
    run(client, f"import os; os.environ['HOME'] = {str(network.home)!r}")
    assert run(client, SETUP.format(spec=network.pair())) == "ready 8\n"
    assert run(client, LONG, manager.interrupt_kernel) == "training\nKeyboardInterrupt"
    assert run(client, AGAIN) == "again\n"
    manager.shutdown_kernel(now=True)
