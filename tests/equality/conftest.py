"""TensorFlow's graph optimizer is off where whole matrices of models train.

Equality with one device is tested with it in `test_one_replica.py` here, and in `front/`, `loops/`, `kernel/` and
`cluster/`.
"""

from tests.support.graph_optimizer import off_where

without_graph_optimizer = off_where(lambda module: module != "test_one_replica")
