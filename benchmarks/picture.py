"""Draw the result of `bench.py`: a bar for each contender, as long as its step takes in units of the bound.

All bars of a block have one bound, so that they can be compared. Over hosts it is the one of a step that sends the
gradients. Where this project sends their factors, which are smaller, it may take less. Plain Keras, which sends
nothing, is left out over hosts.

    python benchmarks/picture.py build/bench/bench.json docs/pictures/bench.svg
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from options import command

NAMES = {
    "plain": "plain Keras", "plain_xla": "plain Keras, XLA", "one": "autodist-keras, one replica",
    "one_xla": "autodist-keras, one replica, XLA", "two": "autodist-keras, two replicas",
    "two_xla": "autodist-keras, two replicas, XLA", "mirrored": "MirroredStrategy", "hosts": "autodist-keras",
    "hosts_gradients": "autodist-keras, factor_rows=0",
    "hosts_bf16": "autodist-keras, bfloat16", "multi_worker": "MultiWorkerMirroredStrategy (tf_keras)",
    "parameter_server": "ParameterServerStrategy (tf_keras)", "torch": "DistributedDataParallel (torch, gloo)",
}  # fmt: skip
_OURS = ("one", "one_xla", "two", "two_xla", "hosts", "hosts_gradients", "hosts_bf16")
_MANY = 64
"""The fewest replicas of the rows of `growth` that are drawn."""


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows of a result into a file; its ending says in which format."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    blocks: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        blocks.setdefault(f"{row['where']}: {row['model']}", []).append(row)
    columns = 2
    lines = -(-(len(blocks) + bool(result["growth"])) // columns)
    figure = Figure(figsize=(12, 2.1 * lines + 0.8), layout="constrained")
    axes = iter(figure.subplots(lines, columns, squeeze=False).flat)
    for title, found in blocks.items():
        shown = [row for row in found if "hosts" not in row["where"] or row["contender"] != "plain"]
        bounds = {row["contender"]: row["bound"] for row in found}
        bound = next(bounds[name] for name in ("two", "hosts_gradients", "hosts") if name in bounds)
        _bars(next(axes), title.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s"),
              {NAMES[row["contender"]]: row["ms"] / bound for row in shown},
              [row["contender"] in _OURS for row in shown])  # fmt: skip
    if result["growth"]:
        many = [row for row in result["growth"] if row["replicas"] >= _MANY]
        title = "no machines: time to build a step, divided by that of the fewest replicas"
        names = [f"{row['model']}, {row['strategy']}, {row['replicas']} replicas" for row in many]
        sizes = dict(zip(names, [row["times_first"] for row in many], strict=True))
        _bars(next(axes), title, sizes, [True] * len(many))
    for axis in axes:
        axis.set_visible(False)
    title = f"Time of a step divided by its bound (shorter is faster), {result['date']}, {result['cores']} cores"
    figure.suptitle(title, fontsize=10)
    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):  # letters as text: a tenth of the bytes
        figure.savefig(path)


def _bars(axis: Any, title: str, sizes: Mapping[str, float], ours: Sequence[bool]) -> None:
    """Draw a bar for each name."""
    bars = axis.barh([*sizes], [*sizes.values()], color=["#1f6feb" if each else "#9aa4b2" for each in ours])
    axis.bar_label(bars, [f"{size:.2f}" for size in sizes.values()], padding=3, fontsize=8)
    axis.axvline(1, color="#333333", linewidth=0.8, linestyle=":")
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xlim(0, 1.15 * max(sizes.values()))
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw the picture that the arguments name."""
    parser = command(__doc__)
    parser.add_argument("result", type=Path, help="the JSON file that bench.py has written")
    parser.add_argument("picture", type=Path, help="the file to write; its ending says in which format")
    given = parser.parse_args()
    draw(json.loads(given.result.read_text()), given.picture)


if __name__ == "__main__":
    main()
