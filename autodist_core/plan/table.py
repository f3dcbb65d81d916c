"""The content of a plan as values: a row for each variable, the bytes of the variable on each device, and the notes.

A CompiledStrategy comes in, and a `PlanTable` goes out, from which `text` and `html` make the forms of the plan.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from autodist_core.errors import amount
from autodist_core.plan.memory import DeviceMemory, together
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan, allows_lead
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan
from autodist_core.strategy.wire import PLAIN

INEXACT = "not exact"
"""The words with which a note begins that says why the training gives other numbers than one device."""
UNDECIDED = "maybe not exact"
"""The words with which a note begins on an operation of which it is not known what it does to a batch."""
_AS_FACTORS = "as factors of the batch"
MEMORY = "memory of all replicas"
"""The name in place of a device's if all replicas share one copy of the variables."""


@dataclass(frozen=True)
class DeviceBytes:
    """The bytes of one variable on one device.

    >>> DeviceBytes(updated=3584)
    DeviceBytes(updated=3584, copied=0)
    """

    updated: int = 0
    """The bytes of the variable or its shards that are updated on the device."""
    copied: int = 0
    """The bytes of a replica's copy, which gets its values from a parameter server."""


@dataclass(frozen=True)
class Row:
    """The row of one variable.

    >>> row = Row("w", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)})
    >>> row.devices["a:CPU:0"].updated
    3584
    """

    name: str
    kind: str
    """Type and shape, such as ``f32[784,128]``, and the word sparse for a sparse variable."""
    text: str
    """The synchronizer and the partitioning as text."""
    size: int
    """The bytes of the variable's value."""
    step: int | None
    """The bytes that travel in a step; ``None`` if the rows of a sparse gradient travel."""
    devices: Mapping[str, DeviceBytes]
    """The devices that have the variable, a shard of it, or a copy."""
    note: str = ""


@dataclass(frozen=True)
class PlanTable:
    """The content of a plan.

    >>> row = Row("w", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)})
    >>> PlanTable("3f9c21", ("a:GPU:0",), (row,)).rows[0].name
    'w'
    """

    strategy: str
    """The strategy's id."""
    replicas: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    """The builder's name, with the options that differ from their defaults."""
    memory: tuple[DeviceMemory, ...] = ()
    """What each machine and each GPU must hold, where it is known."""


def plan_table(
    compiled: CompiledStrategy, graph_item: GraphItem | None = None, memories: Sequence[int] = (),
    notes_besides: Iterable[str] = (), name: str = "", examples: int = 0,
    factored: Mapping[str, Sequence[int]] | None = None, memory: Sequence[DeviceMemory] = (),
) -> PlanTable:
    """Return the content of the plan of ``compiled``.

    ``graph_item`` says how often the step applies each gradient. Without it, each gradient counts once. ``memories``
    is, for each replica, the index of the replica on whose copies it computes; without it, each computes on its own. If
    all replicas compute on one copy, nothing travels. ``notes_besides`` are added to the notes of the strategy; notes
    on other numbers than one device's come first. ``name`` is the builder's. ``factored`` has the variables of whose
    gradients factors travel in a batch of so many ``examples``, with the bytes of one example for each gradient.
    ``memory`` is what each device must hold.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("dense/kernel", (7, 128), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> for device, sizes in plan_table(strategy).rows[0].devices.items():
    ...     print(device, sizes)
    localhost:CPU:0 DeviceBytes(updated=3584, copied=3584)
    localhost:CPU:1 DeviceBytes(updated=0, copied=3584)
    """
    shared = len(memories) > 1 and set(memories) == {0}
    holders = [name for index, name in enumerate(compiled.replicas) if not memories or memories[index] == index]
    counts = Counter(gradient.variable for gradient in graph_item.gradients) if graph_item else Counter[str]()
    machines = len({DeviceSpec.parse(replica).address for replica in compiled.replicas})

    def sent(plan: VariablePlan) -> int | None:
        # Each machine sends its rows of the factors to each other machine.
        of_factors = (factored or {}).get(plan.variable.name, ())
        others = bytes_per_step(plan, holders, max(counts[plan.variable.name], 1), len(of_factors))
        return others + (machines - 1) * examples * sum(of_factors) if others is not None else None

    rows = tuple(
        Row(
            plan.variable.name,
            f"{plan.variable.type_text}{' sparse' if plan.variable.is_sparse else ''}",
            "in shared memory" if shared else plan.text,
            plan.variable.byte_size,
            0 if shared else sent(plan),
            {MEMORY: DeviceBytes(plan.variable.byte_size)} if shared else _bytes_by_device(plan, holders),
            plan.note,
        )
        for plan in compiled.variables
    )
    as_factors = {name for name, sizes in (factored or {}).items() if len(sizes) == counts[name]}
    said = sorted((*notes(compiled, as_factors), *notes_besides), key=lambda note: not note.startswith(INEXACT))
    return PlanTable(compiled.id, compiled.replicas, rows, tuple(said), name, tuple(memory))


def _bytes_by_device(plan: VariablePlan, replicas: Sequence[str]) -> Mapping[str, DeviceBytes]:
    """The bytes of a variable on each device; `replicas` are those with copies of their own."""
    size, updated = plan.variable.byte_size, plan.bytes_on_servers
    if not updated:
        return dict.fromkeys(replicas, DeviceBytes(size))
    served = [each.synchronizer for each in plan.pieces]
    looked_up = plan.variable.is_sparse and not any(isinstance(s, PSPlan) and s.local_replication for s in served)
    followers = () if looked_up or plan.gathered else replicas
    return {
        device: DeviceBytes(updated[device], size if device in followers else 0)
        for device in dict.fromkeys([*followers, *updated])
    }


def state_memory(plan: PlanTable, item: GraphItem) -> tuple[DeviceMemory, ...]:
    """Return the state that each device must hold: what is known of its memory without a batch.

    The optimizer's variables are where the trained ones are updated.

    >>> row = Row("w", "f32[7,128]", "ps(a:CPU:0)", 3584, 0, {"a:CPU:0": DeviceBytes(3584)})
    >>> print(*state_memory(PlanTable("3f9c21", ("a:CPU:0",), (row,)), GraphItem(())))
    memory of a: 3.5 KiB = weights 3.5 KiB; plan(x, y) tells the rest
    """
    weights, updated = Counter[str](), Counter[str]()
    for row in plan.rows:
        for device, each in row.devices.items():
            name = plan.replicas[0] if device == MEMORY else device
            parsed = DeviceSpec.parse(name)
            weights[name if parsed.kind == "GPU" else parsed.address] += each.updated + each.copied
            updated[name if parsed.kind == "GPU" else parsed.address] += each.updated
    trained = sum(row.size for row in plan.rows) or 1
    of_optimizer = sum(each.byte_size for each in item.variables if each.kind == "optimizer")
    return together(
        DeviceMemory((name,), size, updated[name] * of_optimizer // trained, known=False)
        for name, size in weights.items()
    )


def bytes_per_step(plan: VariablePlan, replicas: Sequence[str], times: int = 1, factored: int = 0) -> int | None:
    """Return the bytes that all replicas together send to other devices for one variable in one step.

    ``replicas`` are those with copies of their own: replicas that share memory count as one. ``times`` is the number of
    times that the step applies the variable's gradient; ``factored`` times its factors travel, which are not counted.
    An all-reduce over a ring of N replicas moves each byte of the gradient 2(N-1) times. With a parameter server, the
    gradient and the variable's value travel once for each replica that is on another device than the server. The result
    is ``None`` for a sparse variable, because the number of rows that travel depends on the batch.

    >>> from autodist_core import Variable
    >>> plan = VariablePlan(Variable("dense/kernel", (7, 128), "float32"), AllReducePlan())
    >>> bytes_per_step(plan, ["10.0.0.1:GPU:0", "10.0.0.2:GPU:0", "10.0.0.3:GPU:0"])
    14336
    """
    if len(replicas) == 1 and isinstance(plan.synchronizer, AllReducePlan):
        return 0
    if plan.variable.is_sparse:
        return None
    total = 0
    for each in plan.pieces:
        if isinstance(each.synchronizer, PSPlan):
            elsewhere = sum(replica != each.synchronizer.destinations[0] for replica in replicas)
            # What is gathered travels for the forward and for the backward pass.
            count = (3 if plan.gathered else 2) * times - factored
            total += count * elsewhere * each.wire.bytes
        else:
            total += 2 * (times - factored) * (len(replicas) - 1) * each.wire.bytes
    return total


def notes(strategy: CompiledStrategy, as_factors: Collection[str] = ()) -> Iterator[str]:
    """The notes about the strategy as a whole: those of its builder, what is not exact, what has no effect.

    `as_factors` are the variables whose gradients all travel as the factors of a batch, which no compressor changes.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("dense/kernel", (7, 128), "float32"),)), ResourceSpec.local(cpus=2)
    >>> list(notes(StrategyCompiler(item, spec).compile(PS(sync=False).build(item, spec))))
    ['not exact: asynchronous updates (sync=False) use gradients of older weights']
    """
    yield from strategy.notes
    if len(strategy.replicas) == 1:
        yield "single replica: it computes the whole batch, and nothing is combined"
        return
    lead = strategy.allowed_lead
    pieces = [(plan.variable.name, each.synchronizer) for plan in strategy.variables for each in plan.pieces]
    in_step = [name for name, synchronizer in pieces if not allows_lead(synchronizer)]
    if lead and strategy.in_step_reason:
        yield f"exact after all: {strategy.in_step_reason}, so the replicas keep in step"
    elif lead == inf:
        yield f"{INEXACT}: asynchronous updates (sync=False) use gradients of older weights"
    elif lead:
        yield f"{INEXACT}: staleness={lead} lets a replica compute on weights up to {amount(f'{lead}', 'step')} old"
    elif len(in_step) < len(pieces):
        yield f"staleness and sync=False have no effect: {in_step[0]} keeps the replicas in step"
    for name, sent in _sent_by_compressors(strategy.variables, as_factors).items():
        if sent == {PLAIN}:
            yield f"{name} has no effect: what it would send is no smaller"
        elif sent <= {PLAIN, _AS_FACTORS}:
            yield f"{name} has no effect in this batch: the factors of the gradients travel, as they are"
        else:
            yield f"{INEXACT}: {name} is lossy"


def _sent_by_compressors(plans: Iterable[VariablePlan], as_factors: Collection[str]) -> dict[str, set[str]]:
    """The forms in which gradients travel, for each compressor that the plans name.

    The rows of a sparse gradient always travel as they are.
    """
    found: dict[str, set[str]] = {}
    for plan in plans:
        for each in plan.pieces:
            said = each.synchronizer
            name = f"wire_dtype={said.wire_dtype}" if isinstance(said, PSPlan) else said.compressor
            if name not in ("wire_dtype=", "NoneCompressor"):
                form = PLAIN if plan.variable.is_sparse else each.wire.form
                # What is gathered travels in the smaller type also where gradients do not travel.
                if form != PLAIN and plan.variable.name in as_factors and not plan.gathered:
                    form = _AS_FACTORS
                found.setdefault(name, set()).add(form)
    return found
