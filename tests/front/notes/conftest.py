"""TensorFlow's graph optimizer is off: the notes are made of the captured graph, before it."""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where(lambda module: True)
