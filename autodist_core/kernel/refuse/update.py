"""Refuse an update that the owners of a placement cannot run.

In: the index of a captured step, and its placement. Out: an error for each violation::

    the update draws random numbers at 'normal' (RandomStandardNormal), and every replica would draw its own. ...

All replicas that own variables run the same portion of the update, so the first of them stands for all.
"""

from collections.abc import Collection, Iterator, Sequence

from autodist_core.errors import AutodistError, CaptureError, NotYetError
from autodist_core.kernel.analysis.gradient_flow import reads_own
from autodist_core.kernel.placement.placement import Placement
from autodist_core.kernel.placement.update_portions import Portions
from autodist_core.step.draws import Stream
from autodist_core.step.index import StepIndex


def update_refused(step: StepIndex, placement: Placement) -> Iterator[AutodistError]:
    """Yield an error for each violation in the update.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.kernel.placement.placing import inference
    >>> list(update_refused(StepIndex(GraphItem(())), inference(("localhost:CPU:0",))))
    []
    """
    first, *others = placement.owners
    portions = Portions(step, placement, [first, *(owner for owner in others if owner.replica is None)])
    several = len(placement.replicas) > 1
    names = list(dict.fromkeys(name for _, name in portions))
    inputs = [name for name in names if step.nodes[name].op.startswith("Placeholder")]
    if inputs:
        value = _of_inputs(step, names, inputs)
        yield CaptureError(
            "the update, or what a step does to its gradients before apply, reads the step's input "
            f"{' and '.join(map(repr, inputs))}, and a replica has only its slice of the batch (inputs are numbered in "
            f"the order of x, y and sample_weight). A value of the batch, here {value!r} ({step.nodes[value].op}), may "
            "not decide what is applied: let the update depend on gradients and variables only. "
            "keras.optimizers.LossScaleOptimizer leaves out a step whose gradients are not finite."
        )
    if placement.loose is not None:
        read = {name for _, each in portions for name in step.sources(each)} & step.whole
        for name in step.in_order(read):
            yield NotYetError(
                f"the update reads the step's input {name!r}, and with staleness or sync=False the update runs apart "
                "from the step that has the input. Use a strategy whose replicas stay in step, or let the update read "
                "a variable, which is assigned between calls."
            )
    own = {reads_own(step)[name]: name for name in reversed(names) if name in reads_own(step)} if several else {}
    for variable, name in reversed(own.items()):
        yield _reads_own(step, variable, name)
    for owner, name in portions:
        if several and owner.replica is not None and _draws(step, name):
            yield NotYetError(
                f"the update draws random numbers at {name!r} ({step.nodes[name].op}), and every replica would draw "
                "its own. Use PS() for these variables, or set a seed (keras.utils.set_random_seed) if it is an op's."
            )
        touched = step.touched_by([name])
        if (touched & placement.owner_of.keys()) - portions.variables_of(owner):
            yield CaptureError(
                f"one operation of the update, {name!r} ({step.nodes[name].op}), takes variables of different owners: "
                f"{', '.join(sorted(touched))}. Give these variables one synchronizer and one destination."
            )
    for name in portions.left:
        yield CaptureError(
            f"the update writes through {name!r} ({step.nodes[name].op}), which belongs to no variable's owner."
        )


def _of_inputs(step: StepIndex, names: Collection[str], inputs: Sequence[str]) -> str:
    """The value of the batch that the update reads first, or the first node that reads an input."""
    depending = dict.fromkeys(inputs)
    for name in step.in_order(names):
        found = [source for source in step.sources(name) if source in depending]
        if found and step.is_update(name):
            return found[0]
        if found:
            depending[name] = None
    return next((name for name in depending if name not in inputs), inputs[0])


def _reads_own(step: StepIndex, variable: str, name: str) -> CaptureError:
    operation = step.nodes[name].op
    if step.variables[variable].aggregation == "sum":
        return CaptureError(
            f"a value computed from gradients reads {variable!r} at {name!r} ({operation}) when each replica has its "
            "own value of that variable, from its part of the batch. It has the aggregation SUM, and only one replica "
            "has the sum. Make a variable for gradients without `aggregation`: what is added to it, and what the "
            "update reads, is the sum over the replicas."
        )
    return CaptureError(
        f"a value computed from gradients reads {variable!r} at {name!r} ({operation}) when each replica has its own "
        "value of that variable, from its part of the batch. Read the variable before the step writes it, or after "
        "apply."
    )


def _draws(step: StepIndex, name: str) -> bool:
    """Whether a node of the update draws random numbers that would differ between replicas."""
    # An idle replica does not run the nodes of compute that change the state of a seed generator.
    return any(draw.stream is Stream.UNSEEDED for draw in step.draws.get(name, ())) or any(
        step.variables[each].kind == "seed" for each in step.touched_by([name]) & step.written_by_compute
    )
