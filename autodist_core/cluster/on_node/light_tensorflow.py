"""Import TensorFlow's server without most of TensorFlow's Python, which a server never runs.

TensorFlow's shared library holds all operations and their kernels, and is loaded whole. Importing any module of the
package ``tensorflow`` also imports Keras and the code that builds graphs: 2,000 more modules of Python. This module
puts an empty package in the place of ``tensorflow``, so that only the modules of the server are imported.
"""

import os
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def import_tensorflow_server() -> None:
    """Import the modules that start a server, in a process that uses nothing else of TensorFlow.

    Only the whole package loads libraries that extend TensorFlow. Where such libraries are installed, this function
    imports the whole package.
    """
    # An agent writes no files. Keras would write its settings into the user's home, and `tempfile` would write a file
    # to test whether a directory is writable.
    os.environ["KERAS_HOME"] = os.devnull
    tempfile.tempdir = os.environ.get("TMPDIR", "/tmp")
    if _has_extensions():
        import tensorflow  # noqa: F401
    else:
        _put_empty_package()
    from tensorflow.python.training import server_lib  # noqa: F401


def _put_empty_package() -> None:
    """Make ``tensorflow`` a package whose own code is not run, and whose modules can be imported one by one."""
    found = find_spec("tensorflow")
    if found is None:
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    package = ModuleType("tensorflow")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["tensorflow"] = package
    os.environ["TF2_BEHAVIOR"] = "1"  # the package sets this variable, and the library reads it


def _has_extensions() -> bool:
    """Whether the whole package would load libraries besides its own; it looks for them where it is installed."""
    if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" in os.environ:
        return True
    places = {*sys.path, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))}
    return any(Path(place, "tensorflow-plugins").is_dir() for place in places)
