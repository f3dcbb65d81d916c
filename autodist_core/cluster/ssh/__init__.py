"""ssh: from an address to a program that runs on another machine. Only this folder imports paramiko.

ssh's own configuration (``~/.ssh/config``, the ssh agent, keys, ``known_hosts``) is in force here too; the settings of
the ResourceSpec's ssh group come before it. Every failure is a :class:`~autodist_core.errors.LaunchError` that names
its cause. In reading order:

- ``config``: where to log in, and as which user.
- ``reach``: a stream of bytes to the ssh server.
- ``known_hosts``: whether the server is the right machine.
- ``login``: the keys and the password that are offered to the server.
- ``route``: all of these in order, over jump hosts too.
- ``connection``: a login on one machine, and a program that runs there.

It imports no other folder of the cluster. The folder ``agents`` imports it.
"""

from autodist_core.cluster.ssh.connection import Connection, Process
from autodist_core.cluster.ssh.route import connect

__all__ = ["Connection", "Process", "connect"]
