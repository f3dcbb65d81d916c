"""TensorFlow's graph optimizer is off where whole models train on shards and servers."""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where({"test_mixed_updates", "test_packing", "test_partitioner"}.__contains__)
