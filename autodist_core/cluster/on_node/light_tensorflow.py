"""TensorFlow's server without most of TensorFlow's Python, which a server never runs and which takes long to import.

The operations and what computes them are in TensorFlow's library, which is loaded whole. What builds graphs, and Keras,
are a further 2,000 modules of Python, which the package imports wherever any of its modules is wanted.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def import_server() -> None:
    """Import what starts a server, in a process that uses nothing else of TensorFlow.

    Libraries that extend TensorFlow are loaded by the whole package only: where there are any, it is imported whole.
    """
    # Not a trace in the user's home, where the whole package writes Keras's settings, nor a file that tries which
    # directory takes temporary ones.
    os.environ["KERAS_HOME"] = os.devnull
    tempfile.tempdir = os.environ.get("TMPDIR", "/tmp")
    if _is_extended():
        import tensorflow  # noqa: F401
    else:
        _stand_in_for_the_package()
    from tensorflow.python.training import server_lib  # noqa: F401


def _stand_in_for_the_package() -> None:
    found = find_spec("tensorflow")
    if found is None:
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    package = ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["tensorflow"] = package
    os.environ["TF2_BEHAVIOR"] = "1"  # the package's own setting, which its library reads


def _is_extended() -> bool:
    """Whether the package would load more than its own library; it looks where it is installed."""
    if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ:
        return True
    places = {*sys.path, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))}
    return any(Path(place, "tensorflow-plugins").is_dir() for place in places)
