"""The runtime of one machine: the distributed graph is a function on the user's own variables."""

from autodist_core.runtime.local.session import LocalSession

__all__ = ["LocalSession"]
