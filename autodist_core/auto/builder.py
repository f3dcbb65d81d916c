"""Auto: the strategy that chooses itself.

In: a GraphItem and a ResourceSpec. Out: the Strategy that is predicted to be fastest, with notes on the choice.
"""

from dataclasses import dataclass

from autodist_core.auto.choosing import ALLOWED, Trial, best
from autodist_core.auto.improving import improved
from autodist_core.auto.profiles import EXAMPLES
from autodist_core.auto.words import notes
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import Strategy, StrategyBuilder
from autodist_core.strategy.options import check_choice


@dataclass(frozen=True)
class Auto(StrategyBuilder):
    """Takes the strategy that is predicted to be fastest for this model, batch and cluster.

    It tries all builders whose numbers are one device's, and then changes single variables. What it chose is a plain
    strategy with notes, which can be saved and passed again. Equal models, batches and clusters give equal strategies.

    >>> from autodist_core import Variable
    >>> item = GraphItem((Variable("kernel", (6, 4), "float32"),))
    >>> print(*Auto().build(item, ResourceSpec.local(cpus=2)).notes[:1])
    auto chose Parallax of ... strategies: ... ms predicted for 32 examples (no batch is known) = compute ...
    >>> Auto(allow=("bfloat61",))
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: Auto(allow='bfloat61'): unknown allow. Did you mean 'bfloat16'? Known: Sharded,
        float16, bfloat16, PowerSGDCompressor.
    """

    allow: tuple[str, ...] = ()
    """What is tried besides: ``Sharded``, and compressors, which change the numbers: ``float16``, ``bfloat16``,
    ``PowerSGDCompressor``. ``Sharded`` is tried in any case if nothing else fits into memory."""

    reads_steps = True

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        object.__setattr__(self, "allow", (self.allow,) if isinstance(self.allow, str) else tuple(self.allow))
        for each in self.allow:
            check_choice("Auto", "allow", each, ALLOWED)

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        examples = graph_item.usual_examples
        trial = _trial(graph_item, resource_spec, examples or EXAMPLES)
        first, *others = best(trial, self.allow)
        chosen = improved(trial, first)
        if chosen is not first:
            others = [first, *others]
        strategy = chosen.strategy.copy()
        strategy.notes.extend(notes(trial, chosen, others, known=examples > 0))
        return strategy


def _trial(item: GraphItem, spec: ResourceSpec, examples: int) -> Trial:
    """The trial for a step. What is known of a captured step needs TensorFlow, which has traced it."""
    if not item.gradients or not item.graph_bytes:
        return Trial.of(item, spec, examples)
    from autodist_core.auto.of_step import carried_out, profile_of
    from autodist_core.forecast.needs import available

    here, held = spec.chief.address, sum(each.byte_size for each in item.variables)
    return Trial.of(
        item, spec, examples, profile_of(item, spec, examples),
        carried_out=lambda strategy: carried_out(item, strategy), available=lambda name: available(name, here, held),
    )
