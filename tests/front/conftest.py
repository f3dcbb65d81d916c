"""TensorFlow's graph optimizer is off, but in modules that are about what is computed, and not about what is called."""

from tests.support.graph_optimizer import off_where

WITH_OPTIMIZER = {
    "test_fused_kernels", "test_gpus", "test_interrupts", "test_loose", "test_memory", "test_products",
    "test_promises", "test_random_streams", "test_random_updates",
}  # fmt: skip

without_graph_optimizer = off_where(lambda module: module not in WITH_OPTIMIZER)
