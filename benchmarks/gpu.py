"""Check this project on a GPU: what is right, how fast it is, what is copied, and how much memory it takes.

    python benchmarks/gpu.py [--only right speed] [--device cpu] [--tiny] [--seconds 360] [--out build/gpu]

`make gpu-check` runs it. It needs a GPU that TensorFlow can use, and neither pytest nor a network. Each part runs in a
process of its own with a limit of its own, and says what it found as it goes. The most important parts run first.
At the end a table has a line for each finding, and `gpu-check.json` has every figure, with the card, its driver and all
versions. The file is written after each finding, so that what was found before a crash is kept.

`--device cpu` runs all of it on two CPU devices, to try the check itself. What needs a GPU is then "not run".
With several GPUs, NCCL and the scaling over 1, 2, 4 and 8 of them are checked, too.
The exit status is 1 if a check failed, or if a part crashed or had no end within its limit.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_check.device import Device, cards
from gpu_check.findings import FAILED, NOT_RUN, Finding
from options import command, option

ROOT = Path(__file__).parents[1]
PARTS = {"right": 150, "halves": 120, "agents": 90, "speed": 150, "copies": 60, "memory": 60, "rest": 60, "cards": 90}
"""The most seconds of each part, the most important part first."""
TOGETHER = (("right", "halves", "agents"), ("speed",), ("copies",), ("memory", "rest"), ("cards",))
"""Parts that run at the same time: those that measure no time."""
ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # the parts share the card
    "AUTODIST_LOG": "error",
    "PYTHONUNBUFFERED": "1",
}


class Check:
    """A run of the check: its processes, its findings, and the file in which they are kept."""

    def __init__(self, device: Device, out: Path, seconds: float) -> None:
        self._device, self._file = device, out / "gpu-check.json"
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.findings: list[Finding] = []
        self.seconds: dict[str, float] = {}
        self._head = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device.kind,
            "tiny": device.tiny, "cards": cards(), "versions": versions(),
        }  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)

    def run(self, parts: Sequence[str]) -> None:
        """Run these parts, some of them at the same time."""
        for group in TOGETHER:
            threads = [threading.Thread(target=self._run_part, args=(part,)) for part in group if part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _run_part(self, part: str) -> None:
        limit = min(PARTS[part] * (10 if not self._device.is_gpu else 1), self._until - time.monotonic())
        if limit < 10:
            self._keep(Finding(part, "all of it", NOT_RUN, said="no time was left"))
            return
        began = time.monotonic()
        words = [sys.executable, __file__, "--here", part, "--device", self._device.kind.lower()]
        words += ["--tiny"] * self._device.tiny
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=os.environ | ENVIRONMENT | self._paths(), start_new_session=True,
        )  # fmt: skip
        timer = threading.Timer(limit, _kill, [process])
        timer.start()
        last = [line for line in process.stdout or () if not self._kept(line)][-30:]
        status, ended = process.wait(), timer.is_alive()
        timer.cancel()
        _kill(process)  # and what it has started
        if status:
            said = f"ended with status {status}" if ended else f"had no end within {limit:.0f} s"
            self._keep(Finding(part, "the process", FAILED, said="".join([*last, said])))
        self.seconds[part] = round(time.monotonic() - began, 1)

    def _paths(self) -> dict[str, str]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        hidden = {} if self._device.is_gpu else {"CUDA_VISIBLE_DEVICES": "-1"}
        return {"PYTHONPATH": os.pathsep.join(paths), **hidden}

    def _kept(self, line: str) -> bool:
        finding = Finding.read(line)
        if finding is not None:
            self._keep(finding)
        return finding is not None

    def _keep(self, finding: Finding) -> None:
        with self._lock:
            self.findings.append(finding)
            print(finding.row, flush=True)
            self.write()

    def write(self) -> None:
        """Write what was found until now."""
        result = {**self._head, "seconds": self.seconds, "findings": [asdict(each) for each in self.findings]}
        whole = self._file.with_suffix(".part")
        whole.write_text(json.dumps(result, indent=1))
        whole.replace(self._file)

    def table(self) -> Iterator[str]:
        """The findings, part by part, and the sum of their verdicts."""
        for part in PARTS:
            found = [finding for finding in self.findings if finding.part == part]
            yield from (finding.row for finding in found)
        verdicts = [finding.verdict for finding in self.findings]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        on = ", ".join(card["name"] for card in self._head["cards"]) if self._device.is_gpu else "no GPU"
        yield f"{counts} on {on}, in {sum(self.seconds.values()):.0f} s of the parts"

    @property
    def failed(self) -> bool:
        """Whether something failed."""
        return any(finding.verdict == FAILED for finding in self.findings)


def versions() -> dict[str, str]:
    """The versions of what takes part."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "numpy", "autodist-keras"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Run the parts, print the table, and return the exit code."""
    parser = command(__doc__)
    option(parser, "--only", "some of the parts", list(PARTS), nargs="+", choices=PARTS, metavar="PART")
    option(parser, "--device", "gpu, or cpu to try the check without one", "gpu", choices=("gpu", "cpu"))
    option(parser, "--tiny", "the smallest sizes, to see that it runs")
    option(parser, "--seconds", "the most seconds of all parts together", 360.0, type=float)
    option(parser, "--out", "the folder of gpu-check.json", Path("build/gpu"), type=Path)
    option(parser, "--here", "run one part in this process", None, said="a process for each part", choices=PARTS)
    given = parser.parse_args()
    device = Device(given.device.upper(), given.tiny)
    if given.here:
        import_module(f"gpu_check.{given.here}").run(device)
        return 0
    if device.is_gpu and not cards():
        parser.exit(1, "This machine has no GPU: nvidia-smi lists none. --device cpu tries the check without one.\n")
    check = Check(device, given.out, given.seconds)
    check.run(given.only)
    check.write()
    print("", *check.table(), sep="\n")
    print(f"written to {given.out / 'gpu-check.json'}")
    return int(check.failed)


if __name__ == "__main__":
    sys.exit(main())
