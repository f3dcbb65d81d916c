"""A report as text, and as plain data for JSON: what ``autodist doctor`` prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autodist_core.cluster.doctor.report import NodeReport, Pair, Report, not_ready

_HEAD = ("", "node", "role", "ssh", "Python", "TensorFlow", "autodist-keras", "GPUs", "clock", "CPUs", "memory free")


def as_text(report: Report) -> str:
    """The tables of the nodes and of the links, the notes, and the problems.

    >>> from autodist_core.resource_spec import Node
    >>> lost = NodeReport(Node("10.0.0.2"), problems=("no answer from port 22 within 30 s: the machine is off",))
    >>> print(as_text(Report("cluster.yml", (lost,))))
       node      role    ssh     Python  TensorFlow  autodist-keras  GPUs  clock  CPUs  memory free
    1  10.0.0.2  worker  failed  -       -           -               -     -      -     -
    <BLANKLINE>
    servers take any free port; AUTODIST_PORTS="first-last" would set a range for firewalls to pass
    <BLANKLINE>
    0 of 1 node is ready.
      10.0.0.2: no answer from port 22 within 30 s: the machine is off.
    """
    parts = [_aligned([_HEAD, *(_row(number, node) for number, node in enumerate(report.nodes, 1))])]
    if any(pair.round_trip is not None or pair.problem for pair in report.pairs):
        wanted = {node.node.address: f"{node.node.network_bandwidth:g}" for node in report.nodes}
        parts.append(_matrix(report, "round trip in ms, from the row to the column", {}, _latency))
        parts.append(_matrix(report, "Gbit/s, from the row to the column", {"spec": wanted}, _bandwidth))
        marks = ["! under half of what the spec says of the slower node"] if any(p.slow for p in report.pairs) else []
        marks += ["no: cannot be reached"] if any(pair.problem for pair in report.pairs) else []
        parts[-1] += "".join(f"\n   {mark}" for mark in marks)
    parts.append(_ports(report))
    if report.notes:
        parts.append("\n".join(f"note: {note}." for note in report.notes))
    return "\n\n".join([*parts, verdict(report)])


def verdict(report: Report) -> str:
    """Whether a run can start; if not, one line for each problem.

    >>> from autodist_core.resource_spec import Node
    >>> verdict(Report("cluster.yml", (NodeReport(Node("10.0.0.1")),)))
    'the node is ready'
    """
    count = len(report.nodes)
    if report.problems:
        return not_ready(report.problems, count)
    return f"all {count} nodes are ready" if count > 1 else "the node is ready"


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data, for `json.dumps`.

    >>> as_data(Report("cluster.yml", ()))
    {'source': 'cluster.yml', 'ready': True, 'ports': None, 'nodes': [], 'pairs': [], 'notes': []}
    """
    return {
        "source": report.source, "ready": not report.problems,
        "ports": [report.ports[0], report.ports[-1]] if report.ports else None,
        "nodes": [
            {
                "address": node.node.address, "chief": node.node.chief, "gpus_wanted": list(node.node.gpus),
                "login_seconds": node.login_seconds, "clock_offset": node.clock_offset,
                "description": dict(node.description) or None,
                "problems": list(report.problems.get(node.node.address, ())),
            }
            for node in report.nodes
        ],
        "pairs": [asdict(pair) | {"slow": pair.slow} for pair in report.pairs],
        "notes": list(report.notes),
    }


def _row(number: int, report: NodeReport) -> tuple[str, ...]:
    node, own = report.node, report.description
    login = "failed" if report.login_seconds is None else f"{report.login_seconds:.2f} s"
    row = (str(number), node.address, *(("chief", "here") if node.chief else ("worker", login)))
    if not own:
        return (*row, *["-"] * (len(_HEAD) - len(row)))
    # The agent of a node for which the spec asks no GPU runs with all GPUs hidden.
    gpus = f"{len(own['gpus'])}, asked {len(node.gpus)}" if node.gpus else "none asked"
    offset = "?" if report.clock_offset is None else f"{round(report.clock_offset, 2) + 0.0:+.2f} s"
    return (
        *row, own["python"], own["tensorflow"] or "none", own["autodist-keras"] or "a checkout", gpus,
        "-" if node.chief else offset, f"{own['cpus']}, busy {own['busy']:.1f}",
        f"{own['memory_free'] / 2**30:.1f} of {own['memory'] / 2**30:.1f} GiB",
    )


def _matrix(report: Report, title: str, more: Mapping[str, Mapping[str, str]], cell: Callable[[Pair], str]) -> str:
    """A table with one cell for each ordered pair of nodes that listen; `more` has further columns, by address."""
    numbers = {node.node.address: str(i) for i, node in enumerate(report.nodes, 1) if node.port is not None}
    found = {(pair.source, pair.target): "no" if pair.problem else cell(pair) for pair in report.pairs}
    rows = [
        (
            number, source, *(column[source] for column in more.values()),
            *(found.get((source, target), "-").rjust(6) for target in numbers),
        )
        for source, number in numbers.items()
    ]
    return f"{title}\n" + _aligned([("", "", *more, *(number.rjust(6) for number in numbers.values())), *rows])


def _latency(pair: Pair) -> str:
    return "?" if pair.round_trip is None else f"{1e3 * pair.round_trip:.2f}"


def _bandwidth(pair: Pair) -> str:
    return "?" if pair.gbits is None else f"{pair.gbits:.2f}{'!' if pair.slow else ' '}"


def _ports(report: Report) -> str:
    if report.ports:
        return f"servers take ports {report.ports[0]} to {report.ports[-1]} (AUTODIST_PORTS)"
    return 'servers take any free port; AUTODIST_PORTS="first-last" would set a range for firewalls to pass'


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
