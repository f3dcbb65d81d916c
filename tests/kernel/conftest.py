"""TensorFlow's graph optimizer is off where whole models train on shards."""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where(lambda module: module == "test_partitioner")
