"""ssh: from an address to a program that runs on another machine, by the system's program ``ssh``.

OpenSSH reads its own configuration, keys, agents and ``known_hosts``; the settings of the ResourceSpec's ssh group come
before it. Every failure is a :class:`~autodist_core.errors.LaunchError` that names its cause. In reading order:

- ``command``: the command line and the environment of ``ssh``, and the command line on the other machine.
- ``causes``: why ``ssh`` ended, from what it logged.
- ``connection``: a login on one machine, the program that runs there, and ports that lead from one to the other.

It imports no other folder of the cluster. The folder ``agents`` imports it.
"""

from autodist_core.cluster.ssh.connection import Connection

__all__ = ["Connection"]
