"""TensorFlow's graph optimizer is off: what it makes of a graph comes after the capture."""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where(lambda module: True)
