"""What the chief's process and the agents have in common: the form of their messages, and how they test the network.

In reading order:

- ``messages``: one JSON object a line, the form of every order and every answer.
- ``handshake``: each end of a connection proves to the other one that it knows a secret.
- ``sockets``: addresses in one form, and sockets that listen.
- ``probes``: a listener on every node, tests whether it can be reached, and measurements of the link to it.

Every other folder of the cluster may import this one. It imports none of them, and not TensorFlow.
"""
