"""A Jupyter kernel of this Python."""

import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel of this Python, whatever kernels the person who runs the test has installed."""
    kernels = tmp_path / "kernels" / "this-python"
    kernels.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec | {"display_name": "This Python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    return "this-python"
