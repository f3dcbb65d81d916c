"""The report on where a step's time goes, in words. A `TimeTable` comes in, and text goes out.

>>> parts = {"input": 0.031, "Python": 0.001, "compute": 0.009, "update": 0.001, "wire": 0, "TensorFlow": 0.001,
...          "bringing home": 0.001}
>>> print(text_of(TimeTable(0.044, {"localhost": parts}, 20, 64, 2, "generator")))
a step of 64 examples takes 44.0 ms on 2 replicas (measured in 20 steps)
                 localhost
  input            31.0 ms   70 %
  Python            1.0 ms    2 %
  compute           9.0 ms   20 %
  update            1.0 ms    2 %
  wire              0.0 ms    0 %
  TensorFlow        1.0 ms    2 %
  bringing home     1.0 ms    2 %
  bound: 9.0 ms of arithmetic on localhost
  change first: the input takes 31.0 of 44.0 ms: a generator computes one batch at a time. ...
"""

from collections.abc import Iterator

from autodist_core.errors import amount
from autodist_core.reports.step_times import (
    COMPUTE,
    HOME,
    INPUT,
    PARTS,
    PYTHON,
    STARTING,
    UPDATE,
    WIRE,
    TimeTable,
    WireTime,
)
from autodist_core.step.graph_item import format_bytes

_DATA = {
    "generator": (
        "a generator computes one batch at a time. Make a keras.utils.PyDataset of it, with workers=2 or more, or a "
        "tf.data.Dataset with map(..., num_parallel_calls=tf.data.AUTOTUNE) and prefetch(tf.data.AUTOTUNE)"
    ),
    "PyDataset": (
        "raise the PyDataset's workers and max_queue_size; use_multiprocessing=True if it computes in Python"
    ),
    "tf.data.Dataset": (
        "end the dataset with prefetch(tf.data.AUTOTUNE), give its map num_parallel_calls=tf.data.AUTOTUNE, and "
        "cache() what is the same in each epoch"
    ),
}
_ARRAYS = "pass a tf.data.Dataset that ends with prefetch(tf.data.AUTOTUNE), or arrays of the type that the model takes"
_REMEDIES = {
    PYTHON: "raise batch_size, or let Keras's loop go round less often with compile(steps_per_execution=...)",
    STARTING: "raise batch_size, so that fewer steps are started, and fewer batches sent, for as many examples",
    UPDATE: "raise batch_size. If every replica updates the variables, a strategy such as PSLoadBalancing does it once",
    HOME: "it takes this time at the end of each call: train more steps in a call of fit",
}
_AVOIDABLE = 0.25
"""From which share of a step on a part besides compute is what to change first."""
_WORTH = 0.1
"""Which share of a step a change that costs exactness must be able to save."""
_UNEVEN = 1.3
"""From how many times the arithmetic of the idlest node on the nodes count as uneven."""


def text_of(table: TimeTable) -> str:
    """Return the report as text. The module's docstring has an example."""
    nodes, share = list(table.parts), len(table.parts) == 1
    width = max(12, *(len(node) + 2 for node in nodes))
    head = " " * 15 + "".join(f"{node:>{width}}" for node in nodes)
    lines = [
        f"  {part:13}"
        + "".join(f"{milliseconds(table.parts[node][part]):>{width}}" for node in nodes)
        + (f"{100 * table.parts[nodes[0]][part] / table.step:5.0f} %" if share else "")
        for part in PARTS
    ]
    below = [*bounds(table), *(f"note: {note}" for note in table.notes), f"change first: {advice(table)}"]
    return "\n".join([headline(table), head, *lines, *(f"  {line}" for line in below)])


def headline(table: TimeTable) -> str:
    """Return the line with the time of a step.

    >>> headline(TimeTable(0.0125, {}, 1, 7.5, 1))
    'a step of 7.5 examples takes 12.5 ms on 1 replica (measured in 1 step)'
    """
    return (
        f"a step of {amount(f'{round(table.batch, 1):g}', 'example')} takes "
        f"{milliseconds(table.step)} on {amount(table.replicas, 'replica')} "
        f"(measured in {amount(table.steps, 'step')})"
    )


def milliseconds(seconds: float) -> str:
    """Return a time as text.

    >>> milliseconds(0.0314159), milliseconds(0.000042)
    ('31.4 ms', '0.04 ms')
    """
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 or not round(seconds, 5) else f"{seconds * 1e3:.2f} ms"


def bounds(table: TimeTable) -> Iterator[str]:
    """Yield the lines with what a step cannot be faster than, as long as arithmetic and bytes stay the same.

    >>> parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.009, "Python": 0.001}
    >>> list(bounds(TimeTable(0.01, {"localhost": parts}, 20, 64, 2)))
    ['bound: 9.0 ms of arithmetic on localhost']
    """
    node = table.busiest
    arithmetic = f"bound: {milliseconds(table.parts[node][COMPUTE])} of arithmetic on {node}"
    wire = table.wire
    if wire is None:
        yield arithmetic
        return
    some = f"{amount(wire.sparse, 'sparse variable')}"
    rows = f", without the rows of {some}" if wire.sparse else ""
    gathered = f" ({format_bytes(round(wire.gathered))} of gathered weights)" if wire.gathered else ""
    yield (
        f"{arithmetic}; {milliseconds(wire.seconds)} of wire on {wire.node}: {format_bytes(round(wire.bytes))}"
        f"{gathered} at network_bandwidth {wire.gbit:g} Gbit/s{rows}"
    )


def advice(table: TimeTable) -> str:
    """Return what is most worth changing, in words.

    >>> parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.009, "Python": 0.001}
    >>> advice(TimeTable(0.01, {"localhost": parts}, 20, 64, 2)).partition(":")[0]
    'compute takes 9.0 of 10.0 ms'
    >>> waits, draws = parts | {"wire": 0.02}, parts | {"input": 0.02, "compute": 0.0}
    >>> advice(TimeTable(0.03, {"a": waits, "b": draws}, 20, 64, 2)).partition(":")[0]
    'the input takes 20.0 of 30.0 ms on b'
    """
    here = table.parts[table.busiest]
    part = max((part for part in PARTS if part != COMPUTE), key=lambda each: here[each])
    if here[part] < min(_AVOIDABLE * table.step, here[COMPUTE]):
        part = COMPUTE
    slowest, where = max(table.parts, key=lambda each: table.parts[each][INPUT]), ""
    if part == WIRE and table.parts[slowest][INPUT] > here[WIRE] / 2:
        # The node waits for another one, which waits for its own data.
        part, here, where = INPUT, table.parts[slowest], f" on {slowest}"
    name = {INPUT: "the input", WIRE: "the wire", UPDATE: "the update", STARTING: "starting the step"}.get(part, part)
    taken = milliseconds(here[part]).removesuffix(" ms")
    return f"{name} takes {taken} of {milliseconds(table.step)}{where}: {_remedy(table, part)}"


def _remedy(table: TimeTable, part: str) -> str:
    several = len(table.parts) > 1
    if part == INPUT:
        return _DATA.get(table.source, _ARRAYS)
    if part in _REMEDIES:
        return _REMEDIES[part]
    if part == WIRE and several and table.wire:
        return _of_the_wire(table, table.wire)
    if part == WIRE:
        return "raise batch_size, or let the replicas share one copy of the weights (share_memory=None), if they do not"
    most, least = (select(parts[COMPUTE] for parts in table.parts.values()) for select in (max, min))
    if several and most > _UNEVEN * least:
        return (
            f"{table.busiest} computes {milliseconds(most)}, another node {milliseconds(least)}. Every replica gets "
            "an equal slice of the batch, so the step waits for the slowest: give that node fewer devices in the "
            "cluster file, or leave it out"
        )
    return (
        "this is the model's arithmetic, and the rest cannot win much. More devices may make it faster, or the other "
        "setting of compile(jit_compile=...), or on GPUs the policy mixed_float16"
    )


def _of_the_wire(table: TimeTable, wire: WireTime) -> str:
    """What to do about the wire. The bytes take a part of the measured time at most; the rest is not theirs."""
    of_bytes, often = min(wire.seconds, table.parts[table.busiest][WIRE]), "so that gradients travel less often"
    if of_bytes < _WORTH * table.step:
        return (
            f"raise batch_size, {often}. The bytes take {milliseconds(of_bytes)}, and the rest is waiting for "
            "messages, however short, and for other machines"
        )
    if wire.factored and not wire.gathered:
        return (
            f"of {amount(wire.factored, 'gradient')} the factors travel, and their bytes grow with the batch. Raise "
            "batch_size far above the factor_rows of the plan, so that gradients travel, and less often"
        )
    if wire.gathered:
        saved = milliseconds(wire.seconds * wire.gathered / wire.bytes / 2)
        return f"raise batch_size, {often}, or keep whole weights where memory allows (Sharded()), which saves {saved}"
    return f"raise batch_size, {often}, or let fewer bytes travel by a compressor of AllReduce, which is not exact"
