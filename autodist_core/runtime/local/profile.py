"""Measure each operation of some steps on one machine, by TensorFlow's profiler.

In: steps that run between `Profile()` and `stop`. Out: an `Operation` for each operation. On a GPU the time is that of
the kernels, and not of their launches.

>>> profile = Profile()
>>> profile.stop(())
()
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from autodist_core.kernel.time_parts import part_of
from autodist_core.resource_spec import DeviceSpec
from autodist_core.runtime.timings import STEP, Operation
from autodist_core.seams.table import XSPACE

_REPLICA = re.compile(r"replica([0-9]+)(?:/|$)")
_NANO, _PICO = 1e-9, 1e-12


class Profile:
    """One session of TensorFlow's profiler, from its making to `stop`. The module has an example."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="autodist", ignore_cleanup_errors=True)
        # TensorFlow 2.20 and 2.21 ignore options, and log a warning for each.
        tf.profiler.experimental.start(self._folder.name)

    def stop(self, replicas: Sequence[str]) -> tuple[Operation, ...]:
        """End the session; return the operations of steps in the order of their beginnings.

        `replicas` has the names of the replicas' devices. All CPU devices of TensorFlow are one to its profiler.
        """
        with self._folder as folder:
            tf.profiler.experimental.stop()
            found = [each for path in Path(folder).rglob("*.xplane.pb") for each in _read(path, replicas)]
        return tuple(sorted(found, key=lambda each: each.begin))


def _read(path: Path, replicas: Sequence[str]) -> list[Operation]:
    space = XSPACE.get().FromString(path.read_bytes())
    times = [value for plane in space.planes for name, value in _stats(plane, plane) if name == "profile_start_time"]
    start = times[0]
    found: list[Operation] = []
    for plane in space.planes:
        gpu = re.fullmatch(r"/device:(GPU:[0-9]+)", plane.name)
        for line in plane.lines:
            for event in line.events:
                label = plane.event_metadata[event.metadata_id].name
                if gpu:
                    label = next((str(value) for name, value in _stats(plane, event) if name == "tf_op"), "")
                name, _, op = label.rpartition(":")
                if not (known := STEP.search(name)):
                    continue
                begin = (start + line.timestamp_ns) * _NANO + event.offset_ps * _PICO
                node, device = DeviceSpec.parse(replicas[0]).address, gpu[1] if gpu else _cpu(known[1], replicas)
                found.append(Operation(
                    node, device, known[1], op, part_of(known[1], op), begin, begin + event.duration_ps * _PICO
                ))
    computed = {each.name for each in found if each.device.startswith("GPU")}
    return [each for each in found if each.device.startswith("GPU") or each.name not in computed]


def _stats(plane: Any, holder: Any) -> Iterator[tuple[str, Any]]:
    for stat in holder.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        name = plane.stat_metadata[stat.metadata_id].name
        yield name, plane.stat_metadata[value].name if kind == "ref_value" else value


def _cpu(name: str, replicas: Sequence[str]) -> str:
    found = _REPLICA.search(name)
    device = DeviceSpec.parse(replicas[int(found[1]) if found else 0])
    return f"CPU:{device.index}" if device.kind == "CPU" else "CPU:0"
