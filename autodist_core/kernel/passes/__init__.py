"""The kernels. `autodist_core.kernel.pipeline` lists them in the order in which they run."""
