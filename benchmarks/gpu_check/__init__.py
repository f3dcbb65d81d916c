"""The parts of the check on a GPU, which `benchmarks/gpu.py` runs: each in a process of its own."""
