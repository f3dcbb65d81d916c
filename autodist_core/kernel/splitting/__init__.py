"""Split variables: whether an update can run shard by shard, and lookups in tables that are split.

`autodist_core.kernel.partitioner` is the way in.
"""
