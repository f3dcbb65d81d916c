"""What the two ends of a control connection share, the chief's process at one end and an agent at the other.

In reading order:

- ``messages``: one JSON object a line, the form of every order and every answer.
- ``handshake``: each end proves to the other one that it knows the secret of the run or of the job.
- ``sockets``: addresses, and sockets that listen.
- ``probes``: listeners on the nodes, questions to them, and the measurement of latency and bandwidth.

Every other folder of the cluster may import this one. It imports none of them, and neither TensorFlow nor paramiko.
"""
