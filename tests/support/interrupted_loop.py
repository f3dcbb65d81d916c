"""A loop that Ctrl-C ends again and again: `python -m tests.support.interrupted_loop 20 PS` for 20 interrupts.

Each interrupt falls somewhere into a call of a marked function, and a second one into what ends it. Then the variables
are those of some whole number of steps, and the loop goes on from there.
"""

import sys
import threading

import numpy as np
import tensorflow as tf

from tests.support.interrupted import interrupt_after
from tests.support.loops import autodist


def main(interrupts: int, strategy: str) -> None:
    """Train, be interrupted, train again from there; every step counts once."""
    running, over = threading.Event(), threading.Event()
    threading.Thread(target=lambda: interrupt_after(running, over), daemon=True).start()
    # The mean gradient of `one` is always 1, and that of `other` too: both count the steps.
    one, other, steps = tf.Variable(np.zeros((3, 2))), tf.Variable(np.zeros(4)), tf.Variable(0, dtype=tf.int64)
    count = calls = 0
    with autodist(strategy, replicas=2) as front:

        @front.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(x * (tf.reduce_sum(one) + tf.reduce_sum(other)))
            of_one, of_other = tape.gradient(loss, [one, other])
            one.assign_add(of_one)
            other.assign_add(of_other)
            steps.assign_add(1)
            return loss

        x = np.ones(5)
        step(x)
        while count < interrupts:
            try:
                try:
                    running.set()
                    while True:
                        step(x)
                        calls += 1
                finally:
                    assert over.wait(60)  # the second interrupt comes now at the latest
            except KeyboardInterrupt:
                count += 1
            done = int(steps)
            assert calls + 1 <= done <= calls + 1 + count, (calls, done)
            np.testing.assert_array_equal(one.numpy(), np.full((3, 2), float(done)))
            np.testing.assert_array_equal(other.numpy(), np.full(4, float(done)))
        step(x)
        assert int(steps) == done + 1
    assert int(steps) == done + 1 and float(one[0, 0]) == done + 1.0


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
