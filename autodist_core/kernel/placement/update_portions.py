"""Portions: which owner runs which nodes of the captured update.

In: the index of a captured step, and its placement. Out: `Portions`. For two servers with one variable each, and a
global norm::

    server_a    Sum(Square(gradient of kernel)), the norm, the write of kernel
    server_b    Sum(Square(gradient of bias)), the norm, the write of bias

A portion has the nodes that an owner's writes need, found along data edges. A value that depends on the variables of
one other owner only is computed there, and sent.
"""

from collections.abc import Iterator, Sequence

from autodist_core.kernel.placement.placement import Owner, Placement
from autodist_core.step.index import StepIndex


class Portions:
    """The portions of some owners, with the values that the update hands back to compute.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.kernel.placement.placing import inference
    >>> placement = inference(("localhost:CPU:0", "localhost:CPU:1"))
    >>> list(Portions(StepIndex(GraphItem(())), placement, placement.owners))
    []
    """

    def __init__(self, step: StepIndex, placement: Placement, owners: Sequence[Owner]) -> None:
        self._step, self._placement = step, placement
        self._writes = [name for name in step.in_order(step.writers) if step.is_update(name)]
        self._variables = {owner.name: owner.variables | placement.optimizer_state for owner in placement.owners}
        self._owners: dict[str, dict[str, Owner]] = {}
        self._gradients: set[tuple[str, str]] = set()
        self._groups = self._all_groups()
        for owner in owners:
            for name in self.roots(owner):
                self._assign(owner, name)
        for name in placement.handed_back(step):
            self._assign(placement.owners[0], name)

    def __iter__(self) -> Iterator[tuple[Owner, str]]:
        for name in self._step.in_order(self._owners):
            for owner in self._owners[name].values():
                yield owner, name

    @property
    def left(self) -> list[str]:
        """The writes of the update that are in no portion."""
        return [name for name in self._writes if name not in self._owners]

    def reads(self, owner: Owner, marker: str) -> bool:
        """Whether an owner reads the reduced gradient of a marker."""
        return (owner.name, marker) in self._gradients

    def runs(self, owner: Owner, name: str) -> bool:
        """Whether an owner runs a node."""
        return owner.name in self._owners.get(name, ())

    def roots(self, owner: Owner) -> list[str]:
        """Return the writes of an owner's variables. The first owner also has assertions, printing and the like."""
        own, step = self.variables_of(owner), self._step
        roots = [name for name in self._writes if not own.isdisjoint(step.written_by([name]))]
        if owner == self._placement.owners[0]:
            roots += [name for name in step.item.targets if step.is_update(name) and name not in step.writers]
        return list(dict.fromkeys(roots))

    def variables_of(self, owner: Owner) -> frozenset[str]:
        """Return the variables whose copy on an owner may be written by the owner's portion."""
        return self._variables[owner.name]

    def home(self, owner: Owner, name: str) -> Owner:
        """Return the owner that runs a node whose value an owner needs."""
        placement = self._placement
        for touch in self._step.touches.get(name, ()):
            if touch.variable in self.variables_of(owner):
                return owner
            if touch.variable in placement.owner_of:
                return placement.owner(placement.owner_of[touch.variable])
        groups = self._groups.get(name, frozenset())
        # All replicas are `replica0` here, as in `Placement.owner_of`.
        if len(groups) == 1 and (owner.name if owner.replica is None else "replica0") not in groups:
            return placement.owner(next(iter(groups)))
        return owner

    def _assign(self, owner: Owner, name: str) -> None:
        """Let an owner have a node's value: this owner, or the owner of the node's variables, runs the node."""
        step = self._step
        waiting = [(owner, name)]
        while waiting:
            asking, name = waiting.pop()
            if name in step.markers:
                self._gradients.add((asking.name, name))
            # Compute has the inputs that all replicas get whole, and the update reads them there.
            if name in step.markers or name in step.handle_of or name in step.whole:
                continue
            home = self.home(asking, name)
            if not self.runs(home, name):
                self._owners.setdefault(name, {})[home.name] = home
                waiting.extend((home, source) for source in step.sources(name))

    def _all_groups(self) -> dict[str, frozenset[str]]:
        """Return for each node the owners of the variables and gradients that it depends on; replicas count as one."""
        step, owner_of = self._step, self._placement.owner_of
        found: dict[str, frozenset[str]] = {}
        for name in step.position:
            if name in step.markers:
                found[name] = frozenset({owner_of[step.markers[name].variable]})
                continue
            own = frozenset(map(owner_of.__getitem__, step.touched_by([name]) & owner_of.keys()))
            found[name] = own.union(*(found.get(source, ()) for source in step.sources(name)))
        return found
