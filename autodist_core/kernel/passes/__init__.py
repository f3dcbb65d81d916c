"""The kernels, one file each. `autodist_core.kernel.pipeline` lists them in the order in which they run.

`replicator` copies compute once for each replica. `synchronizer/` reduces the gradients. `barriers` holds every write
back until nothing can fail any more. `residuals` writes what compressors keep. `update` runs the update once for each
owner. `after_update` runs what compute does with the reduced gradients. `state_combiner` makes one state out of the
replicas' metrics and statistics. `outputs` makes one result for the whole batch. `order` adds the order between reads
and writes of each variable.
"""
