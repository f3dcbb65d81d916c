"""Run distributed graphs: on one machine as functions on the user's own variables, or over a cluster.

In: a placement, captured steps and batches. Out: results, and the state of all replicas.
"""
