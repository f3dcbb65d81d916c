"""The benchmark runs, and prints a row for what it was asked to measure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "one_machine.py"


@pytest.mark.long
def test_a_quick_run_measures_all_contenders():
    command = [sys.executable, str(BENCHMARK), "--quick", "--json", "--models", "one_layer"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    results = json.loads(ended.stdout[ended.stdout.index("{") :])["times"]
    assert len(results) == 1
    (times,) = results.values()
    assert len(times) == 4
    assert all(len(values) > 0 and min(values) > 0 for values in times.values())
