"""ssh: from an address to a program that runs there. Nothing outside this folder knows paramiko.

What ssh is configured to do (``~/.ssh/config``, agents, keys, ``known_hosts``) holds here too, and what the
ResourceSpec's ssh group says wins over it. Every failure is a :class:`~autodist_core.errors.LaunchError` that names
its cause. In the order of the flow: ``config`` (where to and as whom), ``reach`` (a stream of bytes to there),
``known_hosts`` (is it the right machine), ``login``, ``route`` (all of these, over jump hosts too), ``connection``, and
``process`` (a running program).
"""

from autodist_core.cluster.ssh.connection import Connection
from autodist_core.cluster.ssh.process import Process, Reader, Writer
from autodist_core.cluster.ssh.route import connect

__all__ = ["Connection", "Process", "Reader", "Writer", "connect"]
