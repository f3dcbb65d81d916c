"""The processes of a cluster: one agent on every node, started and watched by the user's program on the chief.

The folders, in the order of the flow; each one imports itself and the ones before it only, except where it says so:

- ``protocol``: what the chief and the agents share: messages, proofs of identity, probes of the network.
- ``on_node``: what runs on a node: the agent, its TensorFlow server, and the filter that keeps strangers out.
- ``ssh``: a login on another machine and the programs that run there. Only this folder starts ``ssh``.
- ``agents``: the chief's end of the agents: how one is started, asked and ended, alone or several in parallel.
- ``doctor``: the examination of all nodes before anything runs, and its report.
- ``chief``: the start of a cluster, the watch over it, and its restart after a node was lost.

Nothing here knows graphs or models. Only ``on_node.server`` imports TensorFlow, so a fault of a cluster is found within
seconds. This package itself imports nothing, so that an agent's process loads ``protocol`` and ``on_node`` only.
"""
