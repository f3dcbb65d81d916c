"""Everything here is computed in float64."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

OF_KERAS = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
"""Keras's callbacks and its saving turn variables into arrays in a way that NumPy 2 warns of."""


def pytest_collection_modifyitems(items):
    """Warnings are errors, except for the one that is Keras's own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(OF_KERAS))


@pytest.fixture(autouse=True)
def float64():
    """Keras's default dtype for the length of a test."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
