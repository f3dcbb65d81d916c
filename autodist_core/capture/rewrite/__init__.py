"""Rewrite constructs of a captured graph into plain nodes, before anything else reads the graph.

In: the graph of a captured step. Out: the same computation in other nodes. Each module rewrites one construct::

    conditionals    If(...)                           ->  Switch, the nodes of both branches, Merge
    lookups         GatherV2(ReadVariableOp(table))   ->  ResourceGather(table)
    markers         Sum(mask), Max(lengths)           ->  the sum, or the largest, over the replicas
    shares          AssignAddVariableOp(total, loss)  ->  AssignAddVariableOp(total, loss * share of the batch)
"""
