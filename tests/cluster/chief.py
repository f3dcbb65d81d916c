"""A program that trains over hosts until it is interrupted, and then until it is killed. Reads its spec from stdin.

Its argument says how: see `tests.support.interrupted`. It answers SIGUSR1 with the stacks of its threads, on stderr.
"""

import faulthandler
import json
import os
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import numpy as np

from autodist_keras import DistributedModel
from tests.support.interrupted import WAYS


class Say(keras.callbacks.Callback):
    """Says when training is under way."""

    last = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.says = epoch == 0

    def on_train_batch_end(self, batch, logs=None):
        Say.last = time.monotonic()
        if batch == 20 and self.says:
            print("training", flush=True)


def main():
    faulthandler.register(signal.SIGUSR1)
    spec = json.loads(sys.stdin.readline())
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.ones((200000, 8), "float32"), np.ones((200000, 1), "float32")
    front = DistributedModel(model, spec, strategy=WAYS[sys.argv[1]])
    while True:
        try:
            front.fit(x, y, batch_size=8, epochs=100, verbose=0, callbacks=[Say()])
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - Say.last, int(model.optimizer.iterations.numpy()), flush=True)
            front.fit(x[:64], y[:64], batch_size=8, verbose=0)
            front.close()


if __name__ == "__main__":
    main()
