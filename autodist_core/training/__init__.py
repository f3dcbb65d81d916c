"""What any front needs to train: its settings, its sessions, and one state of its variables and the session's.

In: settings, captured steps, and the variables that they touch. Out: sessions that run the steps, and variables that
show the session's values.
"""

from autodist_core.training.devices import replicas
from autodist_core.training.entries import Entry
from autodist_core.training.sessions import Sessions
from autodist_core.training.settings import SETTINGS, Settings
from autodist_core.training.state import State

__all__ = ["SETTINGS", "Entry", "Sessions", "Settings", "State", "replicas"]
