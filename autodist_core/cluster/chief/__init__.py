"""The cluster as the user's process holds it: started, watched, restarted and closed from the chief.

In reading order:

- ``launch``: starts agents and TensorFlow servers on all nodes, or says everything that is wrong with them.
- ``cluster``: a running cluster, and the notice that a node was lost.
- ``fleet``: the cluster of a ResourceSpec, restarted, or continued without a node, after a node was lost.

It imports ``protocol``, ``agents`` and ``doctor``. The runtime and the Keras front import ``Cluster`` and ``Fleet``.
"""
