"""Analyses: what the kernels need to know of a captured step before they change anything.

Each is a function of the step's index whose result is kept with the index. An analysis changes no graph.

`shapes` has the static shapes of tensors. `ownership` says which optimizer variables belong to which trained variable.
`gradient_flow` says which nodes need the reduced gradients, and which read a variable while its copies differ.
`random_draws` says which random numbers each replica draws for itself. `distributable` lists what keeps a step from
being distributed. `products` finds gradients that are products over rows, `failing` finds the operations of a backward
pass that can fail. `results` says how one result of the whole batch is made of the replicas' own.
"""
