"""What runs on a node: one agent for each run, and in it one TensorFlow server. This folder is the security boundary.

In reading order:

- ``agent``: the process itself; it carries out the chief's orders and ends when the chief is gone.
- ``machine``: the CPUs and the memory of the node.
- ``light_tensorflow``: the import of TensorFlow's server without the rest of TensorFlow's Python.
- ``server``: the TensorFlow server of one node.
- ``admission``: the socket filter that lets only the nodes of the run connect to that server.
- ``standby``: the process that a scheduler starts; it waits for the chief and starts an agent for each run.

It imports ``protocol`` and no other folder of the cluster. TensorFlow is imported after all nodes reached each other.
The Keras front and the command line import ``standby``. The chief's side starts ``agent`` by name and imports nothing.
"""
