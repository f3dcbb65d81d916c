"""Train on all machines of a scheduler's job, which TF_CONFIG names, or on this machine alone.

Every process of the job runs this program. One is the chief, and trains; each other one becomes an agent.
"""

import os

import keras
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel


def main() -> None:
    """Train a small model, and say on what."""
    # Without `gpus=`, all machines have as many GPUs as this one.
    spec = ResourceSpec.from_tf_config() if "TF_CONFIG" in os.environ else ResourceSpec()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with DistributedModel(model, spec) as dm:  # in all processes but the chief's, the program ends here
        x = np.random.default_rng(0).normal(size=(1000, 20))
        history = dm.fit(x, x.sum(axis=1), batch_size=50, epochs=3, verbose=0)
        print(dm, "loss:", *(f"{loss:.4f}" for loss in history.history["loss"]))


if __name__ == "__main__":
    main()
