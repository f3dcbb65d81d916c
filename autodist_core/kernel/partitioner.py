"""VariablePartitioner: which variables of a step are split, and the step in which every shard is a variable.

In: a captured step and the plans of its variables. Out: a captured step, in which every shard is a variable::

    kernel : f32[4,3]  ->  kernel/part_0 : f32[2,3]
                           kernel/part_1 : f32[2,3]

In the folder `splitting`, `separable` says whether an update can run shard by shard, and `rewrite` makes the new step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from autodist_core.kernel.splitting.gathers import gathered_when_used
from autodist_core.kernel.splitting.rewrite import SplitRewrite
from autodist_core.kernel.splitting.separable import Splitting, splitting, splittings
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.grouping import by_key
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan


@dataclass(frozen=True)
class VariablePartitioner:
    """Splits the variables of captured steps as their plans say.

    >>> from autodist_core import GraphItem
    >>> partitioner = VariablePartitioner.of(GraphItem(()), ())
    >>> partitioner.apply(GraphItem(())) == GraphItem(()), partitioner.whole
    (True, {})
    """

    plans: Mapping[str, VariablePlan] = field(default_factory=dict)
    """The plans of the variables that are split."""
    looked_up: frozenset[str] = frozenset()
    """Those of these variables without copies on the replicas: they look rows up in the shards, or gather them."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """The variables that the strategy splits and the step cannot, and for each the operation that needs it whole."""
    mirrored: Mapping[str, str] = field(default_factory=dict)
    """The variables that the strategy lets replicas gather and the step cannot, with the operation in the way."""
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each split variable, the variables that are split with it: the variable and its slots."""

    @staticmethod
    def of(item: GraphItem, plans: Iterable[VariablePlan]) -> VariablePartitioner:
        """Return the partitioner of a training step. A variable whose update needs it whole is not split."""
        step = StepIndex.of(item)
        wanted = {plan.variable.name: plan for plan in plans}
        found = {name: splitting(step, name, plan.axis) for name, plan in wanted.items()}
        whole = {name: split.obstacle for name, split in found.items() if split.obstacle} | _mixed(found)
        split_plans = {name: plan for name, plan in wanted.items() if name not in whole}
        in_the_way = {name: _reads_otherwise(step, plan) for name, plan in split_plans.items()}
        looked_up = frozenset(name for name, other in in_the_way.items() if not other)
        mirrored = {name: other for name, other in in_the_way.items() if other and split_plans[name].gathered}
        members = {name: found[name].members for name in split_plans}
        return VariablePartitioner(split_plans, looked_up, whole, mirrored, members)

    def can_split(self, step: StepIndex) -> bool:
        """Whether a step's updates of these variables can run shard by shard.

        >>> from autodist_core import GraphItem
        >>> VariablePartitioner().can_split(StepIndex(GraphItem(())))
        True
        """
        return not any(split.obstacle for split in splittings(step, self.plans, self.members).values())

    def apply(self, item: GraphItem) -> GraphItem:
        """Return the step with its variables split. A step that is split, or reads none of them, is returned as is."""
        known = {variable.name for variable in item.variables}
        ours = self.plans.keys() | frozenset().union(*self.members.values())
        if any(variable.part_of for variable in item.variables) or known.isdisjoint(ours):
            return item
        if item not in self._made:
            gathered = {name: how for name in self.looked_up if (how := self.plans[name].gathered)}
            timed = gathered_when_used(item, {name: how.again_within for name, how in gathered.items()})
            self._made[item] = SplitRewrite(self.plans, self.members, self.looked_up, timed).run()
        return self._made[item]

    @cached_property
    def _made(self) -> WeakKeyDictionary[GraphItem, GraphItem]:
        """The steps that were split, so that placing a step and building its graph split it once."""
        return WeakKeyDictionary()


def _mixed(found: Mapping[str, Splitting]) -> dict[str, str]:
    """Return the variables whose shards would be read together with shards of others by one operation."""
    users = by_key((node, name) for name, split in found.items() for node in split.parts | split.partial)
    shared = {node: names for node, names in users.items() if len(names) > 1}
    return {name: f"{node}, which also reads {' and '.join(n for n in names if n != name)}"
            for node, names in shared.items() for name in names}


def _reads_otherwise(step: StepIndex, plan: VariablePlan) -> str:
    """Return an operation that needs the variable on its replica; empty if there is none.

    Replicas look the rows of a table up in its shards. A variable that is gathered may be read whole, too.
    """
    name, gathered = plan.variable.name, bool(plan.gathered)
    for node in step.touching.get(name, ()):
        # A trace has reads whose values nothing needs, such as of a table of which only the known shape is asked.
        if node not in step.alive or step.is_update(node):
            continue
        op = step.nodes[node].op
        looks_up = op == "ResourceGather" and (step.variables[name].is_sparse or gathered)
        if not (looks_up or (op == "ReadVariableOp" and gathered)):
            return f"{op} ({node})"
    return "" if step.variables[name].is_sparse or gathered else "a read"
