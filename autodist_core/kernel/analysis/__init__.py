"""Analyses: facts about a captured step that the kernels need.

In: a `StepIndex`. Out: a frozen value, which the index stores. An analysis changes no graph::

    slots(step)  ->  {"kernel_momentum": "kernel", "bias_momentum": "bias"}

`shapes` has the static shapes of tensors. `ownership` says which optimizer variables belong to which trained variable.
`gradient_flow` says which nodes need the reduced gradients, which read a variable while its copies differ, and which
each replica needs before the update. `seeds` says which random numbers each
replica draws for itself, and which draws have seeds of their own. `alike_writes` finds writes that every replica does
alike. `products` finds gradients that are products over rows, and `factored` those of which the
factors travel between machines.
`compilable` finds the operations that XLA can compile, and divides them into functions, over several machines by the
stages that `passes/compile.py` finds.
"""
