"""Programs of this folder, each in a process of its own, and files that are in no package as modules."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def printed_by(program: str, *arguments: object, spec: str = "", timeout: float = 240, **variables: str) -> str:
    """Run a module of `tests.support` to its end, and give what it printed."""
    command = [sys.executable, "-X", "faulthandler", "-m", f"tests.support.{program}", *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=ROOT, input=spec, capture_output=True, text=True, timeout=timeout, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module_of(path: Path) -> ModuleType:
    """The module of a file that is in no package."""
    spec = importlib.util.spec_from_file_location(f"file_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
