"""The plan of a captured step: a table of its variables, and notes on how the strategy is carried out.

In: a captured step, a compiled strategy, and the front's own notes. Out: a `Plan`, which prints as text and shows as a
table in a notebook. `plan` of a model and of a marked function call this module.

>>> from autodist_core.resource_spec import ResourceSpec
>>> from autodist_core.step.graph_item import Variable
>>> from autodist_core.strategy import PS
>>> from autodist_core.strategy.compiler import StrategyCompiler
>>> item, spec = GraphItem((Variable("kernel", (3, 1), "float32"),)), ResourceSpec.local(cpus=2)
>>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
>>> print(planned(item, strategy, False, lambda strategy: (), "PS").splitlines()[3])
  kernel : f32[3,1]  ps(localhost:CPU:0)  12 B  24 B/step
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from autodist_core.errors import amount, some
from autodist_core.forecast.needs import forecast
from autodist_core.kernel import (
    Factors,
    arrange,
    bytes_of_example,
    compilable,
    drawn_by_replicas,
    drawn_by_update,
    drawn_explicitly,
    examine,
    factored,
    factors,
    slots,
)
from autodist_core.log import log
from autodist_core.plan import INEXACT, UNDECIDED, DeviceMemory, Plan, notes, plan_table, state_memory
from autodist_core.reports.reasons import Reason
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.draws import Draw, Stream
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.grouping import by_key, grouped
from autodist_core.step.index import StepIndex
from autodist_core.step.values import format_bytes
from autodist_core.strategy import PartitionedPS, Sharded, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.strategy.synchronizers import AllReducePlan

LESS_STATE = PartitionedPS(), Sharded(), Sharded(weights="gathered")
"""What is tried where a step does not fit: the later ones have less on each device, and more travels."""


def planned(
    item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None,
    more: Callable[[CompiledStrategy], Iterable[str]], name: str, assumed: str = "", placed: GraphItem | None = None,
    examples: int = 0, spec: ResourceSpec | None = None,
) -> Plan:
    """The table for a step, and the notes. The module's docstring has an example.

    A captured step that a training would refuse is refused here, too. `more` gives the front's notes. `name` is the
    strategy's builder as text. `assumed` says what is assumed of a step that is not captured. `placed` is the step
    together with those that are placed with it. The strategy is then for all of them, and the table has what this step
    trains. `examples` is the number of examples of the batch, as far as it is known: it decides whether the factors of
    a gradient travel, and what a step takes of each memory; without it, only the state is known. `spec` has the
    machines, for which another strategy is tried where this one does not fit.
    """
    trained, given = {gradient.variable for gradient in item.gradients}, strategy
    arranged = arrange(placed or item, strategy, share_memory)
    together = placed is not None and any(gradient.variable not in trained for gradient in placed.gradients)
    if item.gradients:
        alone = arrange(item, _only(strategy, trained), share_memory) if together else arranged
        examine(item, alone, share_memory)
    strategy, shares, lines = arranged.strategy, arranged.shares_memory, []
    if together:
        strategy = _only(strategy, trained)
        if not shares:
            lines.append("the training functions that have run are placed together; these are this one's variables")
    if shares:
        lines.append(
            "the replicas share one copy of the weights: nothing travels or is split (share_memory=False: as the "
            "strategy has it)"
        )
    step, plans = StepIndex.of(item), {plan.variable.name: plan for plan in strategy.variables}
    whole, mirrored = arranged.partitioner.whole.items(), arranged.partitioner.mirrored.items()
    lines += [
        f"{name} stays whole: {why} needs all of it ({format_bytes(_with_slots(step, name))} where it is updated)"
        for name, why in whole if name in plans
    ]
    lines += [f"{name} keeps its mirrors: {why} needs them" for name, why in mirrored if name in plans]
    if not shares and len(set(arranged.memories)) < len(arranged.memories):
        lines.append("the replicas of a machine share one copy of the weights (share_memory=False: each has its own)")
    if assumed:
        lines.append(assumed)
    rows = [
        plan.variable.name for plan in strategy.variables
        if plan.variable.is_sparse and isinstance(plan.synchronizer, AllReducePlan)
    ]
    if rows and not shares and len(strategy.replicas) > 1:
        lines.append(f"of {some(rows)} only rows travel, as they would to a server; every replica updates its own copy")
    lines += _factor_notes(factors(step, plans, strategy.replicas), examples)
    travelling = bytes_of_example(step, factored(step, plans, strategy.replicas, examples), plans)
    memory = _memory(item, given, share_memory, examples, spec) if item.gradients and examples else ()
    said = [*lines, *more(strategy)]
    made = plan_table(strategy, item, arranged.memories, said, name, examples, travelling, memory)
    return Plan(made if memory else replace(made, memory=state_memory(made, item)))


def _memory(
    item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None, examples: int, spec: ResourceSpec | None
) -> tuple[DeviceMemory, ...]:
    def made(builder: StrategyBuilder) -> CompiledStrategy:
        assert spec
        return StrategyCompiler(item, spec).compile(builder.build(item, spec))

    return forecast(item, strategy, share_memory, examples, LESS_STATE, made if spec else None)


def _factor_notes(found: Mapping[tuple[str, int], Factors | str], examples: int) -> Iterator[str]:
    """The notes on gradients of which the strategy lets factors travel."""
    limits = {name: each.limit for (name, _), each in found.items() if isinstance(each, Factors)}
    below = [name for name, limit in limits.items() if examples <= limit]
    above = [name for name, limit in limits.items() if examples > limit]
    if below and examples:
        yield f"in this batch of {amount(examples, 'example')}, the factors of the gradients of {some(below)} travel"
    elif below:
        yield f"in batches of at most factor_rows examples, the factors of the gradients of {some(below)} travel"
    if above:
        yield f"the gradients of {some(above)} travel: this batch of {amount(examples, 'example')} is above factor_rows"
    reasons = by_key((each, name) for (name, _), each in found.items() if isinstance(each, str))
    for reason, names in reasons.items():
        yield f"factor_rows has no effect on {some(list(dict.fromkeys(names)))}: {reason}"


def _with_slots(step: StepIndex, name: str) -> int:
    """The bytes of a variable and of what the optimizer has for it."""
    of_optimizer = [slot for slot, owner in slots(step).items() if owner == name]
    return sum(step.variables[each].byte_size for each in (name, *of_optimizer))


def _only(strategy: CompiledStrategy, names: Collection[str]) -> CompiledStrategy:
    return replace(strategy, variables=tuple(plan for plan in strategy.variables if plan.variable.name in names))


def say_inexact(name: str, notes: Iterable[str], more: str = "verify() compares with one device") -> bool:
    """Log the notes that say that a step gives other numbers than one device, or may do so; say if there are any.

    The warning ends with `more`: what the user can call to learn more; nothing if it is empty.

    >>> say_inexact("train_step", ["the replicas share one copy of the weights"])
    False
    """
    said = [note for note in notes if note.startswith((INEXACT, UNDECIDED))]
    if said:
        log.warning("%s: %s.%s", name, "; ".join(said), f" {more}." if more else "")
    return bool(said)


def inexact_notes(item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None) -> tuple[str, ...]:
    """Those notes on a step's strategy that explain other numbers than one device's.

    >>> from autodist_core.resource_spec import ResourceSpec
    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy import PS
    >>> from autodist_core.strategy.compiler import StrategyCompiler
    >>> item, spec = GraphItem((Variable("kernel", (3, 1), "float32"),)), ResourceSpec.local(cpus=2)
    >>> inexact_notes(item, StrategyCompiler(item, spec).compile(PS(staleness=2).build(item, spec)), False)
    ('not exact: staleness=2 lets a replica compute on weights up to 2 steps old',)
    """
    return tuple(note for note in notes(arrange(item, strategy, share_memory).strategy) if note.startswith(INEXACT))


def can_draw_as_one(item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None) -> bool:
    """Whether the replicas draw other random numbers than one device, and can draw its numbers to be compared with it.

    >>> from autodist_core.resource_spec import ResourceSpec
    >>> from autodist_core.strategy import PS
    >>> from autodist_core.strategy.compiler import StrategyCompiler
    >>> item, spec = GraphItem(()), ResourceSpec.local(cpus=2)
    >>> can_draw_as_one(item, StrategyCompiler(item, spec).compile(PS().build(item, spec)), False)
    False
    """
    # Replicas that do not wait for each other do not know how many rows the others have.
    several = len(strategy.replicas) > 1 and not arrange(item, strategy, share_memory).is_loose
    step = StepIndex.of(item)
    return several and bool(drawn_by_replicas(step) or (item.explicit_seeds and step.draws))


def drawing_notes(item: GraphItem, where: Callable[[Draw], str] = attrgetter("scope")) -> Iterator[str]:
    """The notes on random numbers that replicas draw in a captured step; `where` names the place of a draw.

    `explicit_draws` has those on explicit seeds, which are not exact.

    >>> list(drawing_notes(GraphItem(())))
    []
    """
    step = StepIndex.of(item)
    explicit = drawn_explicitly(step)
    drawn = [draw for draw in drawn_by_replicas(step) if draw not in explicit]
    drawing = list(dict.fromkeys(where(draw) for draw in drawn if draw.stream is not Stream.FIXED))
    if drawing:
        yield Reason.of(drawn_in(drawing), (draw.path[0] for draw in drawn if draw.stream is not Stream.FIXED))
    fixed = list(dict.fromkeys(f"{draw.op} in {where(draw)}" for draw in drawn if draw.stream is Stream.FIXED))
    if fixed:
        yield Reason.of(
            f"{INEXACT}: all replicas draw the same random numbers by {some(fixed)}: TensorFlow gives it no seed "
            "that could be another one for each replica (the draws of keras.random have one)",
            (draw.path[0] for draw in drawn if draw.stream is Stream.FIXED),
        )


def explicit_draws(item: GraphItem, where: Callable[[Draw], str] = attrgetter("scope")) -> Iterator[str]:
    """The note on draws from explicit seeds that depend on the size of the batch; `where` names the place of a draw.

    >>> list(explicit_draws(GraphItem(())))
    []
    """
    drawn = drawn_explicitly(StepIndex.of(item))
    places = list(dict.fromkeys(map(where, drawn)))
    if places:
        yield Reason.of(
            f"{INEXACT}: each replica draws its own random numbers in {some(places)} from an explicit seed, and one "
            "device draws once for the whole batch", (draw.path[0] for draw in drawn),
        )


def drawn_anew(item: GraphItem) -> Iterator[str]:
    """The note of `verify` on draws of the update that one device begins anew, and the replicas do not.

    >>> list(drawn_anew(GraphItem(())))
    []
    """
    drawn = drawn_by_update(StepIndex.of(item))
    own = [draw for draw in drawn if draw.stream in (Stream.ATTRIBUTE, Stream.UNSEEDED)]
    names = list(dict.fromkeys(f"{draw.op} in {draw.place}" for draw in own))
    if names:
        yield Reason.of(
            f"{INEXACT}: the update draws random numbers by {some(names)}; TensorFlow keeps their place outside of "
            "variables, so one device begins anew, and the replicas go on", (draw.path[0] for draw in own),
        )


def compiled_by_xla(item: GraphItem, together: bool = False) -> Iterator[str]:
    """The note on what XLA compiles of each replica's compute. A step that is not captured yet has no operations.

    `together` says that XLA compiles compute and update in one.

    >>> list(compiled_by_xla(GraphItem(())))
    ["jit_compile=True: XLA compiles each replica's compute, as far as it can"]
    >>> list(compiled_by_xla(GraphItem(()), together=True))
    ['jit_compile=True: XLA compiles compute and update in one, as far as it can']
    """
    if not item.graph_bytes:
        what = "compute and update in one" if together else "each replica's compute"
        yield f"jit_compile=True: XLA compiles {what}, as far as it can"
        return
    step = StepIndex.of(item)
    found = compilable(step)
    kinds = grouped(found.outside, lambda name: step.nodes[name].op)
    outside = [f"{len(names)} {op} ({some(names)})" for op, names in sorted(kinds.items())]
    total = len(found.names) + len(found.outside)
    yield (
        f"compiled by XLA: {len(found.names)} of {amount(total, 'operation')} of each replica's compute"
        + (_with_update(found.outside_of_update) if together and item.gradients else "")
        + (f"; outside: {', '.join(outside)}" if outside else "")
    )


def _with_update(outside: Sequence[str]) -> str:
    but = f" without {len(outside)} of its operations ({some(outside)})" if outside else ""
    return f", in one with the update{but}"


def drawn_in(places: Sequence[str]) -> str:
    """The note that replicas draw their own random numbers in these places.

    >>> drawn_in(["dropout"])
    'not exact: each replica draws its own random numbers in dropout; replica 0 draws the numbers of one device'
    """
    own = f"each replica draws its own random numbers in {some(places)}"
    return f"{INEXACT}: {own}; replica 0 draws the numbers of one device"
