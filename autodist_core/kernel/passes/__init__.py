"""The kernels, one file each. `autodist_core.kernel.pipeline` lists them in the order in which they run.

In: a draft. Out: the same draft with more nodes. For two replicas that share memory, in short::

    replicator     replica0/gradient, replica1/gradient
    synchronizer   reduced/memory/0/kernel = AddN(replica0/gradient, replica1/gradient)
    update         update/memory/step      = AssignSubVariableOp(kernel, reduced/memory/0/kernel)

`replicator` copies compute once for each replica. `synchronizer/` reduces the gradients. `barriers` lets every write
wait until no operation can fail any more. `update` runs the update once for each owner, and what else waits for reduced
gradients. `state_combiner` makes one state of the replicas' metrics and statistics. `outputs` makes one result for the
whole batch. `order` adds the order between reads and writes of each variable. `gradients_in_turn` lets few large
gradients be in memory at one time. `numbers_together` packs the numbers that servers need of each other,
`lookups_together` what replicas look up in several tables of a server, and `weights_together` the small weights that
they gather. `compile` puts each replica's compute into functions that XLA compiles, if the model asks for it.
"""
