"""Draw the result of `bench.py`: a bar for each contender, as long as its step takes in units of the bound.

    python benchmarks/picture.py build/bench/bench.json docs/pictures/bench.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = {
    "plain": "plain Keras", "plain_xla": "plain Keras, XLA", "one": "autodist-keras, one replica",
    "two": "autodist-keras, two replicas", "mirrored": "MirroredStrategy", "hosts": "autodist-keras",
    "hosts_bf16": "autodist-keras, bfloat16", "multi_worker": "MultiWorkerMirroredStrategy (tf_keras)",
    "parameter_server": "ParameterServerStrategy (tf_keras)", "torch": "DistributedDataParallel (torch, gloo)",
}  # fmt: skip
_OURS = ("one", "two", "hosts", "hosts_bf16")


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows of a result into a file; its ending says in which format."""
    from matplotlib.figure import Figure

    blocks: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        blocks.setdefault(f"{row['where']}: {row['model']}", []).append(row)
    columns = 2
    lines = -(-len(blocks) // columns)
    figure = Figure(figsize=(12, 2.1 * lines + 0.8), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flat
    for axis, (title, found) in zip(axes, blocks.items(), strict=False):
        names = [NAMES[row["contender"]] for row in found]
        sizes = [row["of_bound"] for row in found]
        colours = ["#1f6feb" if row["contender"] in _OURS else "#9aa4b2" for row in found]
        bars = axis.barh(names, sizes, color=colours)
        axis.bar_label(bars, [f"{size:.2f}" for size in sizes], padding=3, fontsize=8)
        axis.axvline(1, color="#333333", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlim(0, 1.15 * max(sizes))
        axis.invert_yaxis()
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes):
        axis.set_visible(False)
    title = f"Time of a step divided by its bound (shorter is faster), {result['date']}, {result['cores']} cores"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
