"""Texts that are pinned: what a test prints must be what the file in ``golden/`` says.

To accept new texts, run ``AUTODIST_GOLDEN=write python -m pytest`` with the files that use this, and read the diff.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check(name, text):
    path = FOLDER / f"{name}.txt"
    if os.environ.get("AUTODIST_GOLDEN") == "write":
        path.write_text(text + "\n", encoding="utf-8")
    expected = (
        path.read_text(encoding="utf-8") if path.exists() else f"{path} is missing; goldens.py says how to make it."
    )
    assert text + "\n" == expected


def message(error):
    """An error as it reads, after its class."""
    return f"{type(error).__name__}: {error}"
