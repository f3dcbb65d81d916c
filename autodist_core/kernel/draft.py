"""Draft: the graph of one step for all replicas while the kernels build it.

In: a captured step, its placement, and which replicas have examples. No kernel changes these. Out: the nodes of the
draft's editor, and fields that kernels fill for later kernels, in the order of the pipeline::

    Replicator        local       {("kernel", 0, 0): Rows("replica0/gradient"), ("kernel", 0, 1): ...}
    PSSynchronizer    reduced     {("kernel", 0, "memory"): Rows("reduced/memory/0/kernel")}
    Barriers          barriers    {0: "barrier/0"}
    Outputs           outputs     ["joined/loss/done"]

A kernel declares which fields it needs and which it provides (see `Kernel`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.analysis.factored import factored
from autodist_core.kernel.analysis.products import Product, gradient_products, weight_products
from autodist_core.kernel.placement.placement import Copy, Placement, Replica
from autodist_core.kernel.refuse import require_distributable
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import Gradient, GraphItem, Variable
from autodist_core.step.grouping import grouped
from autodist_core.step.index import StepIndex
from autodist_core.strategy.factor_rows import AT_ONCE_IN_AGENTS


@dataclass(frozen=True)
class Rows:
    """A gradient as tensors of the draft: dense if `indices` is empty, else rows of the variable.

    >>> Rows("replica0/gradient"), Rows("replica0/rows", "replica0/ids")
    (Rows(values='replica0/gradient', indices=''), Rows(values='replica0/rows', indices='replica0/ids'))
    """

    values: str
    indices: str = ""


@dataclass(frozen=True)
class Slicing:
    """Which replicas have examples of the batch, and how many, as far as it is known.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> replicas = example_placement(PS()).replicas
    >>> Slicing(replicas, (3, 2)).size_of(replicas[1]), Slicing(replicas).size_of(replicas[1])
    (2, None)
    """

    replicas: tuple[Replica, ...]
    """The active replicas."""
    sizes: tuple[int, ...] = ()
    """How many examples each of them has, if the graph is for these sizes only."""
    stands_for: tuple[Replica, ...] = ()
    """If they stand for more replicas (`kernel/units/`), all of these; else empty."""
    all_sizes: tuple[int, ...] = ()
    """How many examples each of these has, if the graph is for these sizes only."""
    examples: int = 0
    """The size of the batch; 0 if it is not known."""

    @property
    def of_all(self) -> tuple[tuple[Replica, ...], tuple[int, ...]]:
        """The replicas that have examples, with those that others stand for, and their sizes."""
        return self.stands_for or self.replicas, self.all_sizes or self.sizes

    def size_of(self, replica: Replica) -> int | None:
        """Return how many examples a replica has, if the graph is for batches of one size."""
        return self.sizes[self.replicas.index(replica)] if self.sizes else None


@dataclass(frozen=True)
class Products:
    """The products of matrices that a draft does not compute for each replica.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> example_draft(PS()).products.weights
    frozenset()
    """

    gradients: Mapping[tuple[str, int], Product]
    """The gradients that are one product over the rows of several replicas, by variable and occurrence."""
    travelling: Mapping[tuple[str, int], Product]
    """Those of them whose factors travel between machines."""
    weights: frozenset[str]
    """The captured products with weights that are one product over the rows of several replicas."""


@dataclass(kw_only=True)
class Filled:
    """What kernels fill for later ones. Each kernel declares the fields that it uses.

    >>> Filled().buckets, sorted(FILLED)[:3]
    (0, ['added', 'barriers', 'buckets'])
    """

    compute: set[str] = field(default_factory=set)
    """The captured nodes of compute that are copied for every active replica."""
    local: dict[tuple[str, int, int], Rows] = field(default_factory=dict)
    """Each replica's own gradients, by variable, occurrence and replica."""
    initializers: list[str] = field(default_factory=list)
    """The nodes to run once, before the first step."""
    reduced: dict[tuple[str, int, str], Rows] = field(default_factory=dict)
    """The reduced gradients, by variable, occurrence and owner."""
    collectives: int = 0
    """How many collectives each replica has; all replicas number them in the same way."""
    buckets: int = 0
    """How many sums of dense gradients there are, by collectives or by sends."""
    added: list[AddedVariable] = field(default_factory=list)
    """The variables that kernels added."""
    new_values: list[tuple[AddedVariable, str, int]] = field(default_factory=list)
    """The new values of these variables, each a tensor, and the occurrence with whose update it is written."""
    barriers: dict[int, str] = field(default_factory=dict)
    """The node for which every write of an update waits, by occurrence."""
    returned: dict[str, str] = field(default_factory=dict)
    """The tensors with the values that the update hands back to compute, by the captured tensor's name."""
    outputs: list[str] = field(default_factory=list)
    """The step's results for the whole batch."""
    steps: list[str] = field(default_factory=list)
    """The nodes to run so that everything in `targets` is done."""


FILLED = frozenset(each.name for each in fields(Filled))


@dataclass
class Draft(Filled):
    """A distributed step under construction. Replicas without examples take an idle step.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> draft = Draft.of(example_step(), example_placement(PS()))
    >>> draft.active, [replica.name for replica in draft.active_replicas]
    ((0, 1), ['localhost:CPU:0', 'localhost:CPU:1'])
    """

    # Given, and not changed by any kernel.
    step: StepIndex
    placement: Placement
    slicing: Slicing
    editor: Editor
    targets: list[str] = field(default_factory=list)
    """The nodes that the step must run: writes, assertions, sends. Every kernel may add to them."""
    provided: set[str] = field(default_factory=set)
    """The names of the fields that kernels have provided; the runner fills it."""

    @staticmethod
    def of(item: GraphItem, placement: Placement, slicing: Slicing | None = None) -> Draft:
        """Return an empty draft of a captured step. All replicas have examples, unless `slicing` says otherwise."""
        step = StepIndex.of(item)
        require_distributable(step, placement)
        editor = Editor(step.graph.library, step.graph.versions)
        return Draft(step, placement, slicing or Slicing(placement.replicas), editor)

    @cached_property
    def products(self) -> Products:
        """The products that are computed once for several replicas, or from factors that travel."""
        step, gradients, weights = self.step, dict[tuple[str, int], Product](), frozenset[str]()
        if any(len(self.together(replica)) > 1 for replica in self.active_replicas):
            gradients, weights = gradient_products(step), weight_products(step)
        names = [replica.name for replica in self.everyone]
        travelling = factored(step, self.placement.plans, names, self.slicing.examples)
        return Products(gradients | travelling, travelling, weights)

    @property
    def everyone(self) -> tuple[Replica, ...]:
        """All replicas of the step, with those that others stand for."""
        return self.slicing.stands_for or self.placement.replicas

    def stands(self, replica: Replica) -> bool:
        """Whether a replica stands for others, on other machines. It has all operations that any of these has."""
        return bool(self.slicing.stands_for) and replica.index > 0

    @property
    def active_replicas(self) -> tuple[Replica, ...]:
        """The replicas that have examples."""
        return self.slicing.replicas

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The indices of the replicas that have examples."""
        return tuple(replica.index for replica in self.active_replicas)

    def together(self, replica: Replica) -> Sequence[Replica]:
        """Return the active replicas whose rows large layers multiply at once with those of this replica.

        They compute on the same copies of the weights.
        """
        crowded = self.placement.tasks.job and self._on_host[replica.host] > AT_ONCE_IN_AGENTS
        return (replica,) if crowded else self._of_memory[self.placement.memory(replica)]

    @cached_property
    def _of_memory(self) -> dict[int, list[Replica]]:
        """The active replicas that compute on the same copies of the weights."""
        return grouped(self.active_replicas, self.placement.memory)

    @cached_property
    def _on_host(self) -> Counter[str]:
        """The number of active replicas on each machine, with those that others stand for."""
        return Counter(replica.host for replica in self.slicing.of_all[0])

    def at(self, name: str) -> int:
        """Return the time at which a captured node touches variables; odd times are between captured nodes."""
        return 2 * self.step.position[name]

    @property
    def end(self) -> int:
        """The time at which every captured node is done."""
        return 2 * self.step.end

    def handle(self, variable: str, copy: Copy) -> str:
        """Return the handle of one copy of a variable, and add it if it is not there."""
        name = f"variable/{naming.safe(copy.name)}"
        return self._handle(name, self.step.variables[variable], copy.device, copy.shared_name)

    def read(self, name: str, variable: str, copy: Copy, order: int) -> str:
        """Add a read of one copy of a variable; return its name."""
        dtype, handle = self.spec(variable).dtype, self.handle(variable, copy)
        return self.editor.add("ReadVariableOp", name, [handle], copy.device, order, dtype=dtype)

    def write(self, name: str, variable: str, copy: Copy, value: str, order: int) -> None:
        """Add a write of one copy of a variable; it is one of the step's targets."""
        dtype = tf.as_dtype(self.step.variables[variable].dtype)
        inputs = [self.handle(variable, copy), value]
        self.targets.append(self.editor.add("AssignVariableOp", name, inputs, copy.device, order, dtype=dtype))

    def kept(self, added: AddedVariable) -> str:
        """Return the handle of an added variable, and add it if it is not there."""
        name = f"kept/{naming.safe(added.name)}"
        if name not in self.editor:
            self.added.append(added)
        return self._handle(name, added, added.device, added.name)

    def _handle(self, name: str, variable: Variable | AddedVariable, device: str, shared_name: str) -> str:
        dtype, shape = tf.as_dtype(variable.dtype), tf.TensorShape(variable.shape)
        return self.editor.once("VarHandleOp", name, device=device, dtype=dtype, shape=shape, shared_name=shared_name)

    def spec(self, variable: str) -> tf.TensorSpec:
        """Return the shape and the type of a variable."""
        found = self.step.variables[variable]
        return tf.TensorSpec(found.shape, tf.as_dtype(found.dtype))

    def fed(self, replica: Replica, name: str) -> str:
        """Return the placeholder for a replica's slice of one of the captured step's inputs."""
        of_known_size = f"{replica.copy_of(name)}/fed"
        return of_known_size if of_known_size in self.editor else replica.copy_of(name)

    def total(self) -> str:
        """Return the tensor with the number of examples of the whole batch."""
        return self._count("feed/total", sum(self.slicing.of_all[1]), self.placement.tasks.chief)

    def examples(self, replica: Replica) -> str:
        """Return the tensor with a replica's number of examples."""
        return self._count(f"feed/{replica.prefix}/examples", self.slicing.size_of(replica) or 0, replica.host)

    def _count(self, name: str, known: int, device: str) -> str:
        """Return a constant if the graph is for known sizes, else a placeholder."""
        if self.slicing.sizes:
            return self.editor.constant(name, float(known), tf.float64, device)
        return self.editor.once("Placeholder", name, device=device, dtype=tf.float64, shape=tf.TensorShape([]))

    def share(self, replica: Replica, dtype: tf.DType) -> str:
        """Return the tensor with a replica's share of the batch: its examples by all examples."""
        counts = [self.examples(replica), self.total()]
        name = self.editor.once("RealDiv", f"feed/{replica.prefix}/share", counts, replica.host, T=tf.float64)
        if dtype == tf.float64:
            return name
        return self.editor.once("Cast", f"{name}_{dtype.name}", [name], replica.host, SrcT=tf.float64, DstT=dtype)

    def add_up(self, name: str, values: Sequence[str], dtype: tf.DType, device: str) -> str:
        """Return the sum of tensors, added in this order."""
        if len(values) == 1:
            return values[0]
        first, *others = values
        # The built values may stand for more.
        if len(values) > 2 or self.slicing.stands_for:
            first = self.editor.add("Snapshot", f"{naming.FIRST}/{name}", [first], device, T=dtype)
        return self.editor.add("AddN", name, [first, *others], device, N=len(values), T=dtype)

    def stack(self, name: str, values: Sequence[str], dtype: tf.DType, device: str) -> str:
        """Return tensors of one shape as one tensor, along a new last axis."""
        return self.editor.once("Pack", name, values, device, N=len(values), T=dtype, axis=-1)

    def shares(self, dtype: tf.DType) -> str:
        """Return the shares of all active replicas as one vector, on the first one's device."""
        parts = [self.share(replica, dtype) for replica in self.active_replicas]
        return self.stack(f"feed/shares_{dtype.name}", parts, dtype, self.active_replicas[0].host)

    def largest(self, name: str, values: Sequence[str], dtype: tf.DType, device: str) -> str:
        """Return the largest of tensors, entry by entry."""
        found, *rest = values
        for index, value in enumerate(rest):
            found = self.editor.add("Maximum", f"{name}/{index}", [found, value], device, T=dtype)
        return found

    @property
    def crossing(self) -> dict[str, Callable[[str, Sequence[str], tf.DType, str], str]]:
        """The captured nodes of which the replicas' values become one, each with the method that makes it."""
        item = self.step.item
        return {
            **dict.fromkeys(item.cross_replica_sums, self.add_up),
            **dict.fromkeys(item.cross_replica_maxima, self.largest),
            **dict.fromkeys(item.cross_replica_gathers, self.join),
        }

    def join(self, name: str, values: Sequence[str], dtype: tf.DType, device: str, axis: int = 0) -> str:
        """Return tensors one behind the other along an axis."""
        if len(values) == 1:
            return values[0]
        place = self.editor.constant(f"{name}/axis", axis, tf.int32, device)
        return self.editor.add("ConcatV2", name, [*values, place], device, N=len(values), T=dtype, Tidx=tf.int32)

    def stacked(self, name: str, dtype: tf.DType, replicas: Sequence[Replica]) -> str:
        """Return the rows of some replicas' copies of a captured tensor, on the device of the first one."""
        label = f"stacked/{replicas[0].prefix}/{naming.label(name)}"
        if label in self.editor:
            return label
        return self.join(label, [replica.copy_of(name) for replica in replicas], dtype, replicas[0].device)

    def sources(self, gradient: Gradient) -> tuple[str, ...]:
        """Return the captured tensors from whose copies the reduced gradient is computed."""
        product = self.products.gradients.get(gradient.key)
        return (product.left, product.right) if product else gradient.parts

    def types_of(self, gradient: Gradient) -> tuple[tf.DType, ...]:
        """Return the type of a gradient's values and, of a sparse gradient, that of its row indices."""
        return tuple(tf.as_dtype(self.step.nodes[naming.node_of(name)].attr["T"].type) for name in gradient.parts)

    def type_of(self, gradient: Gradient) -> tf.DType:
        """Return the type of a gradient's values."""
        return self.types_of(gradient)[0]
