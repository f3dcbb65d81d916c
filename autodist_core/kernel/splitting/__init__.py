"""Split variables: a step in which every shard of a split variable is a variable.

In: a captured step and the plans of split variables. Out: a captured step, or the operation that keeps a variable
whole::

    AssignSubVariableOp(w, g)  ->  AssignSubVariableOp(w/part_0, Slice(g, 0, 2))
                                   AssignSubVariableOp(w/part_1, Slice(g, 2, 2))

`separable` says whether an update can run shard by shard. `rewrite` makes the new step. `reductions` combines
reductions of shards. `shard_lookups` looks rows up in shards. `gathers` says when replicas gather shards.
`autodist_core.kernel.partitioner` uses all of them.
"""
