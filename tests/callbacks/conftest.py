"""TensorFlow's graph optimizer is off where tests are about what is called and said, not about what is computed."""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where({"test_keras_callbacks", "test_resume"}.__contains__)
