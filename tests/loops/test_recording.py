"""The hooks that are in place while a function is traced."""

import pytest
import tensorflow as tf

from autodist_core.capture.gradients.recording import recorded
from autodist_core.seams.seam import owner
from autodist_core.seams.table import VARIABLE_HANDLE


def test_a_hook_that_another_thread_holds_works_after_it_is_gone():
    variable, kind = tf.Variable(3.0), owner(VARIABLE_HANDLE.owner)
    before, gradient = vars(kind)[VARIABLE_HANDLE.name], tf.GradientTape.gradient
    with tf.Graph().as_default(), recorded():
        held, held_gradient = vars(kind)[VARIABLE_HANDLE.name], tf.GradientTape.gradient
        assert held is not before and held_gradient is not gradient
    assert vars(kind)[VARIABLE_HANDLE.name] is before and tf.GradientTape.gradient is gradient
    with tf.GradientTape() as tape:
        loss = variable**2
    assert held.fget(variable) is variable.handle
    assert float(held_gradient(tape, loss, variable)) == 6.0


@pytest.mark.parametrize(
    ("given", "is_handed_in"),
    [
        (lambda: None, False), (lambda: [2.0], False), (lambda: [tf.ones(())], False), (lambda: [tf.ones(3)], True),
        (lambda: [tf.ragged.constant([[1.0], [2.0, 3.0]])], True),
    ],
    ids=["nothing", "a number of Python", "a number", "a vector", "ragged"],
)  # fmt: skip
def test_what_a_tape_begins_with_is_noted_if_it_is_no_number(given, is_handed_in):
    """Its shape may not fit, so that any gradient may fail."""
    with tf.Graph().as_default() as graph, recorded() as recording:
        values = given()
        before = len(graph.get_operations())
        recording.note_handed_in(values)
        assert len(graph.get_operations()) == before
    assert recording.handed_in == is_handed_in
