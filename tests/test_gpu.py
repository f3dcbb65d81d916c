"""The check on a GPU: on a GPU all of it, and elsewhere that it runs, and does not say that it has passed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "benchmarks/gpu.py"
PARTS = ("right", "halves", "agents", "speed", "copies", "memory", "rest", "cards")


def check(folder: Path, *words: str) -> tuple[int, dict]:
    """The exit status of the check, and what it wrote."""
    command = [sys.executable, str(GPU), "--out", str(folder), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.stdout.endswith(f"written to {folder / 'gpu-check.json'}\n"), ended.stdout + ended.stderr
    return ended.returncode, json.loads((folder / "gpu-check.json").read_text())


def failures(result: dict) -> list[str]:
    return [f"{each['name']}: {each['said']}" for each in result["findings"] if each["verdict"] == "FAILED"]


@pytest.mark.gpu
@pytest.mark.parametrize("part", PARTS)
def test_a_part_on_a_gpu(part: str, tmp_path: Path):
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU on this machine")
    status, result = check(tmp_path, "--only", part)
    assert not failures(result) and status == 0
    assert result["cards"] and result["findings"]


def test_all_parts_run_without_a_gpu_and_say_what_was_not_run(tmp_path: Path):
    status, result = check(tmp_path, "--device", "cpu", "--tiny", "--seconds", "270")
    assert not failures(result) and status == 0
    found = {(each["part"], each["name"]): each for each in result["findings"]}
    assert {part for part, _ in found} == set(PARTS)
    assert {each["name"] for each in result["findings"] if each["verdict"] == "not run"} == {
        "NCCL on one card", "one_layer: plain Keras", "one_layer: 1 replica", "one_layer: 2 replicas", "one_layer",
        "NCCL with one rank", "NCCL over all cards",
    }
    assert 0 < found["speed", "one_layer"]["figures"]["one / plain"] < 100
    assert found["right", "dense, float64"]["figures"]["error"] <= 1e-12
    assert result["versions"]["tensorflow"] and set(result["seconds"]) == set(PARTS)


def test_a_part_without_an_end_fails_and_is_kept(tmp_path: Path):
    status, result = check(tmp_path, "--device", "cpu", "--only", "right", "speed", "--seconds", "11")
    assert status == 1
    ends = {each["part"]: (each["verdict"], each["said"].splitlines()[-1:]) for each in result["findings"]}
    assert ends["right"][0] == "FAILED" and "had no end within 11 s" in ends["right"][1][0]
    assert ends["speed"] == ("not run", ["no time was left"])
