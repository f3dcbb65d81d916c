"""Programs of this folder, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

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
