"""Draws the pictures of these pages: `python docs/pictures.py` writes them to docs/pictures/.

A picture has a light card as its background, so that it can be read on light and on dark pages. A test compares the
files with what this script draws.
"""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "pictures"

INK, SOFT, CARD, LINE = "#1f2933", "#52606d", "#f8f9fb", "#b8c2cc"
COLORS = {"kernel": "#1d6fb8", "bias": "#8a4fbf", "table": "#2b8a3e"}
GRADIENT, VALUE, ROW = "#d9480f", "#1d6fb8", "#2b8a3e"
STYLES = {
    "gradients": f'stroke="{GRADIENT}" stroke-width="2.5"',
    "values": f'stroke="{VALUE}" stroke-width="2.5" stroke-dasharray="8 5"',
    "rows": f'stroke="{ROW}" stroke-width="2.5" stroke-dasharray="2 5" stroke-linecap="round"',
    "flow": f'stroke="{SOFT}" stroke-width="2"',
}


@dataclass
class Picture:
    """An SVG under construction."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, fill: str = "#ffffff", stroke: str = LINE) -> None:
        """Add a rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{stroke}" '
            'stroke-width="1.5"/>'
        )

    def text(
        self, x: float, y: float, words: str, size: int = 14, color: str = INK, anchor: str = "start", weight: int = 400
    ) -> None:
        """Add one line of text."""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def arrow(self, kind: str, x1: float, y1: float, x2: float, y2: float, both: bool = False) -> None:
        """Add a line with a head at its end, or at both ends."""
        start = f' marker-start="url(#{kind})"' if both else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {STYLES[kind]} marker-end="url(#{kind})"{start}/>'
        )

    def stage(self, x: float, y: float, w: float, head: str, *lines: str, fill: str = "#ffffff") -> None:
        """Add a box with a head and lines below it."""
        self.box(x, y, w, 34 + 18 * len(lines), fill)
        self.text(x + w / 2, y + 23, head, 14, INK, "middle", 600)
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + 43 + 18 * number, line, 12, SOFT, "middle")

    def chip(self, x: float, y: float, words: str, mirror: bool = False) -> float:
        """Add a variable: filled where it is updated, outlined where it is a mirror; returns where it ends."""
        color = COLORS[words.split()[0]]
        width = 16 + 7.3 * len(words)
        self.box(x, y, width, 26, "#ffffff" if mirror else color, color)
        self.text(x + width / 2, y + 18, words, 13, color if mirror else "#ffffff", "middle")
        return x + width + 6

    def svg(self) -> str:
        """The picture as a file."""
        heads = "".join(
            f'<marker id="{kind}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6" '
            f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{color}"/></marker>'
            for kind, color in (("gradients", GRADIENT), ("values", VALUE), ("rows", ROW), ("flow", SOFT))
        )
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif">',
            f"<title>{escape(self.title)}</title>",
            f"<defs>{heads}</defs>",
            f'<rect width="{self.width}" height="{self.height}" rx="12" fill="{CARD}"/>',
            *self.parts,
            "</svg>\n",
        ])


@dataclass(frozen=True)
class Scene:
    """What the replicas and the servers of two machines hold under a strategy, and what travels between them."""

    title: str
    replicas: tuple[str, ...] = ()
    """Variables that every replica updates itself."""
    mirrors: tuple[str, ...] = ()
    """Variables of which every replica has a mirror."""
    servers: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Variables that each machine's CPU updates."""
    between: tuple[str, ...] = ()
    """What travels between the replicas."""


SCENES = {
    "all-reduce": Scene(
        "AllReduce: every replica holds and updates every variable; gradients are summed between the replicas",
        replicas=("kernel", "bias", "table"), between=("gradients", "rows"),
    ),
    "ps": Scene(
        "PS: every variable lives on the first CPU device; gradients go there, new values and rows come back",
        mirrors=("kernel", "bias"), servers=(("kernel", "bias", "table"), ()),
    ),
    "ps-load-balancing": Scene(
        "PSLoadBalancing: as PS, with the variables spread over all CPU devices by their bytes",
        mirrors=("kernel", "bias"), servers=(("kernel",), ("bias", "table")),
    ),
    "parallax": Scene(
        "Parallax: dense variables as in AllReduce, looked-up tables as in PSLoadBalancing",
        replicas=("kernel", "bias"), servers=(("table",), ()), between=("gradients",),
    ),
    "partitioned-ps": Scene(
        "PartitionedPS: every variable in shards of equal size, spread over the CPU devices",
        mirrors=("kernel", "bias"),
        servers=(("kernel 1/2", "bias 1/2", "table 1/2"), ("kernel 2/2", "bias 2/2", "table 2/2")),
    ),
    "uneven-partitioned-ps": Scene(
        "UnevenPartitionedPS: every variable in shards of unequal size, spread over the CPU devices",
        mirrors=("kernel",), servers=(("kernel 1/3", "kernel 3/3"), ("kernel 2/3",)),
    ),
    "partitioned-ar": Scene(
        "PartitionedAR: every replica holds every variable in shards; each shard is all-reduced by itself",
        replicas=("kernel 1/2", "kernel 2/2"), between=("gradients", "gradients"),
    ),
    "random-axis-partition-ar": Scene(
        "RandomAxisPartitionAR: as PartitionedAR, each variable along an axis that the seed decides",
        replicas=("kernel columns 1/2", "kernel columns 2/2"), between=("gradients", "gradients"),
    ),
}

_MACHINES = ((20, 340), (460, 340))
_REPLICA, _CPU = (48, 92), (220, 78)


def strategy(scene: Scene) -> str:
    """The picture of one strategy on two machines."""
    served = any(scene.servers)
    height = 372 if served else 232
    picture = Picture(820, height, scene.title)
    bottom = 310 if served else 160
    for number, (x, width) in enumerate(_MACHINES):
        picture.box(x, 12, width, bottom - 4, "#eef1f5")
        picture.text(x + 14, 34, f"machine {number + 1}", 13, SOFT, weight=600)
        picture.box(x + 14, _REPLICA[0], width - 28, _REPLICA[1])
        picture.text(x + 26, _REPLICA[0] + 22, f"replica {number + 1}: computes on its part of the batch", 13)
        _chips(picture, x + 26, _REPLICA[0] + 34, x + width - 20, scene.replicas, scene.mirrors)
        if served:
            picture.box(x + 14, _CPU[0], width - 28, _CPU[1])
            picture.text(x + 26, _CPU[0] + 22, "CPU: a server" if scene.servers[number] else "CPU: holds nothing", 13)
            _chips(picture, x + 26, _CPU[0] + 36, x + width - 20, scene.servers[number], ())
    for index, kind in enumerate(scene.between):
        y = _REPLICA[0] + 22 + 30 * index
        picture.arrow(kind, 350, y, 470, y, both=True)
    for number, held in enumerate(scene.servers):
        kinds = ["rows"] if any(name.startswith("table") for name in held) else []
        if any(not name.startswith("table") for name in held):
            kinds = ["gradients", "values", *kinds]
        for replica in range(2):
            _links(picture, kinds, replica, number)
    _legend(picture, height - 40, scene)
    return picture.svg()


def _chips(
    picture: Picture, left: float, top: float, right: float, updated: tuple[str, ...], mirrors: tuple[str, ...]
) -> None:
    x, y = left, top
    for name, mirror in [(name, False) for name in updated] + [(name, True) for name in mirrors]:
        if x + 16 + 7.3 * len(name) > right:
            x, y = left, y + 29
        x = picture.chip(x, y, name, mirror)


def _links(picture: Picture, kinds: list[str], replica: int, server: int) -> None:
    top, bottom = _REPLICA[0] + _REPLICA[1], _CPU[0]
    for index, kind in enumerate(kinds):
        if replica == server:
            x = _MACHINES[replica][0] + (70 if replica == 0 else 190) + 40 * index
            ends = (x, top + 2, x, bottom - 2)
        else:
            outer = _MACHINES[replica][0] + (296 - 26 * index if replica == 0 else 44 + 26 * index)
            inner = _MACHINES[server][0] + (296 - 26 * index if server == 0 else 44 + 26 * index)
            ends = (outer, top + 2, inner, bottom - 2)
        if kind == "values":
            ends = (*ends[2:], *ends[:2])
        picture.arrow(kind, *ends, both=kind == "rows")


def _legend(picture: Picture, y: float, scene: Scene) -> None:
    name = "kernel"
    end = picture.chip(20, y, name)
    picture.text(end, y + 18, "updated here", 13, SOFT)
    x = end + 96
    if scene.mirrors:
        end = picture.chip(x, y, name, mirror=True)
        picture.text(end, y + 18, "mirror", 13, SOFT)
        x = end + 58
    tables = any("table" in name for name in (*scene.replicas, *scene.servers[0], *scene.servers[1]))
    for kind, words in (("gradients", "gradients"), ("values", "new values"), ("rows", "rows of the table, both ways")):
        if (kind == "values" and not scene.mirrors) or (kind == "rows" and not tables):
            continue
        picture.arrow(kind, x, y + 13, x + 40, y + 13)
        picture.text(x + 48, y + 18, words, 13, SOFT)
        x += 66 + 7 * len(words)


def flow() -> str:
    """How a step takes shape, and what happens with one batch."""
    picture = Picture(860, 430, "From a Keras model and a cluster file to a step over all replicas")

    stage = picture.stage
    picture.text(20, 30, "Once, when the first batch comes", 13, SOFT, weight=600)
    stage(20, 44, 170, "Keras model", "its training step,", "captured as a graph", fill="#e7f0fa")
    stage(20, 128, 170, "cluster.yml", "machines and devices", fill="#e7f0fa")
    stage(245, 78, 170, "strategy", "for each variable: where", "gradients are reduced,", "where the update runs")
    stage(470, 78, 160, "kernels", "one graph", "for all replicas")
    stage(685, 78, 155, "session", "here, or over", "all machines")
    picture.arrow("flow", 192, 84, 242, 108)
    picture.arrow("flow", 192, 152, 242, 134)
    picture.arrow("flow", 417, 114, 467, 114)
    picture.arrow("flow", 632, 114, 682, 114)

    picture.parts.append(f'<line x1="20" y1="206" x2="840" y2="206" stroke="{LINE}"/>')
    picture.text(20, 234, "Then, for each batch of Keras's own fit loop", 13, SOFT, weight=600)
    stage(20, 284, 120, "batch", "64 examples", fill="#e7f0fa")
    for number, y in enumerate((248, 326)):
        stage(205, y, 210, f"replica {number + 1}: 32 examples", "forward, loss, gradients", "as on one device")
        picture.arrow("flow", 142, 310, 202, y + 34)
        picture.arrow("gradients", 417, y + 34, 477, 310 + 8 * number)
    stage(480, 276, 170, "reduce", "gradients of the", "whole batch")
    stage(705, 276, 135, "update", "Keras's optimizer,", "as captured")
    picture.arrow("gradients", 652, 310, 702, 310)
    picture.parts.append(
        f'<path d="M772 346 V412 H310 V400" fill="none" {STYLES["values"]} marker-end="url(#values)"/>'
    )
    picture.text(540, 404, "new weights, before the next batch", 12, SOFT, "middle")
    return picture.svg()


def values() -> str:
    """The values from a model to a running step, and the folder that makes each."""
    picture = Picture(860, 330, "The flow of values: each is made by one stage from the values before it")
    given = "#e7f0fa"
    picture.stage(20, 20, 150, "cluster.yml", "or a scheduler", fill=given)
    picture.stage(235, 20, 170, "ResourceSpec", "resource_spec/")
    picture.stage(20, 116, 150, "model, batch", "or a loop's function", fill=given)
    picture.stage(235, 116, 170, "GraphItem", "capture/: compute, update")
    picture.stage(470, 68, 170, "CompiledStrategy", "strategy/")
    picture.stage(690, 20, 150, "plan", "plan/, reports/")
    picture.stage(690, 116, 150, "Placement", "kernel/placement/")
    picture.stage(690, 236, 150, "DistributedGraph", "kernel/passes/,", "kernel/units/")
    picture.stage(470, 236, 170, "session", "runtime/, cluster/", "training/")
    picture.stage(235, 236, 170, "Keras's fit, a loop", "autodist_keras/training/,", "loops/")
    picture.stage(20, 236, 150, "the model's state", "weights, optimizer,", "metrics", fill=given)
    for ends in ((172, 46, 232, 46), (172, 142, 232, 142), (407, 46, 467, 80), (407, 142, 467, 108),
                 (642, 84, 687, 58), (642, 104, 687, 130), (765, 170, 765, 233), (687, 271, 643, 271)):
        picture.arrow("flow", *ends)
    picture.arrow("flow", 467, 271, 408, 271, both=True)
    picture.arrow("values", 232, 271, 173, 271)
    return picture.svg()


BYTES = {
    "AllReduce": (5.3, 10.5, 0.9, 6.7),
    "PartitionedPS": (4.9, 0.0, 0.3, 7.0),
    "Sharded": (5.5, 1.3, 0.6, 7.0),
    'Sharded(weights="gathered")': (0.7, 1.3, 0.4, 7.3),
}
"""The GiB of one GPU under each strategy that the plans of the page on large models say, by `KINDS`."""
KINDS = {"weights": VALUE, "optimizer": COLORS["bias"], "gradients, buffers": GRADIENT, "activations": LINE}


def memory() -> str:
    """What is in the memory of one GPU of eight, for each strategy."""
    picture = Picture(860, 250, "GiB of each of eight GPUs for a model of 1.4 billion parameters, with Adam")
    for row, (name, sizes) in enumerate(BYTES.items()):
        y, x = 22 + 44 * row, 230.0
        picture.text(220, y + 20, name, 12, INK, "end", 600)
        for size, color in zip(sizes, KINDS.values(), strict=True):
            if size:
                picture.box(x, y, 23 * size, 30, color, CARD)
            x += 23 * size
        picture.text(x + 8, y + 20, f"{sum(sizes):.1f}", 14)
    for place, (kind, color) in enumerate(KINDS.items()):
        picture.box(230 + 150 * place, 206, 20, 20, color, CARD)
        picture.text(256 + 150 * place, 221, kind, 13, SOFT)
    return picture.svg()


def pictures() -> dict[str, str]:
    """Every picture by its file's name."""
    strategies = {f"{name}.svg": strategy(scene) for name, scene in SCENES.items()}
    return {"flow.svg": flow(), "memory.svg": memory(), "values.svg": values(), **strategies}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg)
