"""What any front needs to train: its settings, its sessions, and one state of its variables and the session's.

In: settings, captured steps, and the variables that they touch. Out: sessions that run the steps, and variables that
show the session's values.
"""

from autodist_core.training.compressor_state import CompressorState
from autodist_core.training.entries import Entry, has_value
from autodist_core.training.failed_steps import raise_in_words
from autodist_core.training.first_values import without_value
from autodist_core.training.settings import SETTINGS, Settings
from autodist_core.training.state import TrainingState
from autodist_core.training.steps import Captured, Steps
from autodist_core.training.training import Training

__all__ = [
    "SETTINGS", "Captured", "CompressorState", "Entry", "Settings", "TrainingState", "Steps", "Training",
    "has_value", "raise_in_words", "without_value",
]
