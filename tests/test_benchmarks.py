"""The benchmarks run, and give figures for what they were asked to measure."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


COMMANDS = [path for path in sorted(BENCHMARKS.glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_the_help_of_a_command_has_each_option_with_its_default(path):
    command = [sys.executable, str(path), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.startswith(f"usage: {path.name} [-h]")
    own = ended.stdout.partition("show this help message and exit\n")[2]
    options = [" ".join(text.split()) for text in re.split(r"^  (?=--)", own, flags=re.MULTILINE)[1:]]
    assert all(re.search(r" \(default: .+\)$", text) for text in options), options
    assert len(options) == path.read_text().count("    option(parser, ")


def test_a_quick_run_measures_all_contenders(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "bench.py"), "--quick", "--only", "one_machine"]
    command += ["--models", "one_layer", "--out", str(tmp_path)]
    subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    result = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["contender"]: row for row in result["rows"]}
    assert set(rows) == {"plain", "plain_xla", "one", "one_xla", "two", "two_xla", "mirrored"}
    bound = min(rows["plain"]["ms"], rows["plain_xla"]["ms"])
    assert all(row["of_bound"] == row["ms"] / bound > 0 for row in rows.values())
    assert result["times"][0]["ms"]["two"] == [rows["two"]["ms"]]


def test_a_peer_and_this_project_take_turns_over_hosts(network_is_possible):
    command = [sys.executable, str(BENCHMARKS / "hosts.py"), "--models", "one_layer", "--rounds", "2", "--steps", "2"]
    command += ["--peers", "multi_worker", "--bf16", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    times = json.loads(ended.stdout[ended.stdout.index("{") :])["times"]["one_layer"]
    assert set(times) == {"plain", "hosts", "hosts_bf16", "multi_worker"}
    assert all(len(values) == 2 and min(values) > 0 for values in times.values())


def test_the_parts_of_a_step_on_the_wire_are_those_of_its_bytes(network_is_possible):
    command = [sys.executable, str(BENCHMARKS / "wire.py"), "--models", "mlp", "--steps", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    lines = ended.stdout.splitlines()
    line = next(line for line in lines if line.startswith("  step"))
    step, before, wire, after, busy, sent, gradients = map(float, re.findall(r"[0-9.]+", line.replace("%", "")))
    assert min(before, wire, after) > 0
    assert before + wire + after == pytest.approx(step, rel=0.3), "medians of parts of single steps"
    assert gradients == pytest.approx(33.6, abs=0.1)
    assert gradients < sent < 1.1 * gradients
    assert wire > 0.95 * sent * 8, "1 Gbit/s carries no more"
    assert busy == pytest.approx(100 * sent * 8 / wire, rel=0.1)
    line = next(line for line in lines if line.strip().startswith("= until full"))
    until_full, carried, last = map(float, re.findall(r"[0-9.]+", line))
    assert until_full + carried + last == pytest.approx(step, abs=0.2)
    assert (carried, last) == (pytest.approx(8 * gradients / 0.957, rel=0.01), after)


def test_data_that_the_machines_keep_is_faster_than_data_that_is_fed(network_is_possible):
    command = [sys.executable, str(BENCHMARKS / "data.py"), "--rounds", "2", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    times = json.loads(ended.stdout[ended.stdout.index("{") :])["times"]
    assert set(times) == {"fed", "kept", "pipeline", "followed", "decoded", "by file", "constant"}
    assert all(kept < fed for kept, fed in zip(times["kept"], times["fed"], strict=True))
    assert max(min(times["pipeline"]), min(times["followed"])) < min(times["fed"])


def test_calls_of_one_step_cost_less_than_twice_the_steps_of_one_call():
    command = [sys.executable, str(BENCHMARKS / "calls.py"), "--hosts", "1", "--rounds", "3", "--json"]
    ended = subprocess.run([*command, "--strategies", "PS"], capture_output=True, text=True, timeout=280, check=True)
    times = json.loads(ended.stdout[ended.stdout.index("{") :])["PS"]
    assert set(times) == {"train_on_batch", "fit", "block"}
    assert 0 < min(times["train_on_batch"]) < 2 * min(times["block"])
    assert 0 < min(times["block"]) < 2 * min(times["fit"])
