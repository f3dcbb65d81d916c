"""What a card did in some steps: the profile that TensorFlow writes, read event by event."""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Profile:
    """Sums over the steps of a profile, divided by their number. Times are in milliseconds."""

    to_card: float
    """Bytes copied from the host to the card."""
    to_host: float
    kernels: float
    busy: float
    """The time in which a kernel ran."""
    idle: float
    """The time between the first kernel and the last one in which none ran."""
    waits: float
    """The calls of the driver in which the program waited for the card."""
    host_events: float
    """What TensorFlow did on the processor."""


def profiled(fit: Callable[..., Any], steps: int) -> Profile:
    """Profile the second epoch of a `fit` of so many steps for each epoch. No callback looks at a single step."""
    import keras
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:

        class OfAnEpoch(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    tf.profiler.experimental.start(folder)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    tf.test.experimental.sync_devices()
                    tf.profiler.experimental.stop()

        fit(epochs=2, steps_per_epoch=steps, callbacks=[OfAnEpoch()], shuffle=False, verbose=0)
        (file,) = Path(folder).rglob("*.xplane.pb")
        return read(file.read_bytes(), steps)


def read(written: bytes, steps: int) -> Profile:
    """Read a profile of so many steps.

    >>> from tensorflow.tsl.profiler.protobuf import xplane_pb2
    >>> space = xplane_pb2.XSpace()
    >>> card = space.planes.add(name="/device:GPU:0")
    >>> card.stat_metadata[1].name = "memcpy_details"
    >>> line = card.lines.add(name="Stream #7")
    >>> for number, name in enumerate(["gemm", "MemcpyH2D", "gemm"], 1):
    ...     card.event_metadata[number].name = name
    ...     event = line.events.add(metadata_id=number, offset_ps=number * 3 * 10**9, duration_ps=10**9)
    >>> line.events[1].stats.add(metadata_id=1).str_value = "kind_src:pageable size:400 dest:0 async:1"
    >>> profile = read(space.SerializeToString(), steps=2)
    >>> profile.to_card, profile.kernels, profile.busy, profile.idle
    (200.0, 1.0, 1.0, 2.5)
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(written)
    copied = {"H2D": 0, "D2H": 0}
    ran: list[tuple[int, int]] = []
    waits = host = 0
    for plane in space.planes:
        on_card = plane.name.startswith("/device:GPU")
        for name, start, stop, size in _events(plane, on_card):
            copy = re.match(r"Memcpy(H2D|D2H)", name)
            if on_card and copy:
                copied[copy[1]] += size
            elif on_card and not name.startswith(("Memcpy", "Memset")):
                ran.append((start, stop))
            elif not on_card:
                host += 1
                waits += "Synchronize" in name
    busy, whole = _covered(ran)
    return Profile(
        copied["H2D"] / steps, copied["D2H"] / steps, len(ran) / steps, busy / steps / 1e9,
        (whole - busy) / steps / 1e9, waits / steps, host / steps,
    )  # fmt: skip


def _events(plane: Any, on_card: bool) -> Iterator[tuple[str, int, int, int]]:
    """Name, begin and end in picoseconds, and the bytes that are copied, of each event."""
    for line in plane.lines:
        if on_card and not line.name.startswith("Stream"):
            continue  # lines that group the kernels of the others
        begin = line.timestamp_ns * 1000
        for event in line.events:
            details = "".join(
                stat.str_value or plane.stat_metadata[stat.ref_value].name for stat in event.stats
                if plane.stat_metadata[stat.metadata_id].name == "memcpy_details"
            )
            size = re.search(r"size:(\d+)", details)
            start = begin + event.offset_ps
            name = plane.event_metadata[event.metadata_id].name
            yield name, start, start + event.duration_ps, int(size[1]) if size else 0


def _covered(intervals: list[tuple[int, int]]) -> tuple[int, int]:
    """How much intervals cover, and how long it is from the first one's begin to the last one's end.

    >>> _covered([(0, 3), (2, 4), (6, 7)])
    (5, 7)
    """
    covered, end = 0, None
    for start, stop in sorted(intervals):
        covered += max(0, stop - (start if end is None else max(start, end)))
        end = stop if end is None else max(end, stop)
    return covered, (end - min(intervals)[0]) if intervals else 0
