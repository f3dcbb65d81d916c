"""What a kernel is, the draft it works on, and the runner that applies kernels in order and checks after each.

A kernel is a small frozen value whose fields are its options. `apply` adds to a draft: the graph of one step for all
replicas, built next to the captured step, which no kernel changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from autodist_core.errors import AutodistError, KernelError
from autodist_core.kernel.added_variables import Kept, Remembered
from autodist_core.kernel.analysis.distributable import require_distributable
from autodist_core.kernel.analysis.gradient_flow import after_update, handed_back
from autodist_core.kernel.analysis.products import Product, products, with_weights
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Copy, Owner, Placement, Replica
from autodist_core.step import editor
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import ALIKE, UNIQUE, Gradient, GraphItem
from autodist_core.step.index import StepIndex


@dataclass(frozen=True)
class Rows:
    """A gradient as tensors of the draft: dense when `indices` is empty, else rows of the variable."""

    values: str
    indices: str = ""


@dataclass
class Draft:
    """A distributed step under construction; the `active` replicas have examples, the others take an idle step."""

    captured: StepIndex
    placement: Placement
    active: tuple[int, ...]
    editor: Editor
    sizes: tuple[int, ...] = ()
    """How many examples each of them has, where the graph is for these sizes alone."""
    products: dict[tuple[str, int], Product] = field(default_factory=dict)
    """Gradients that are made of all replicas' rows at once."""
    at_once: frozenset[str] = frozenset()
    """Captured products that are made of all replicas' rows at once."""
    local: dict[tuple[str, int, int], Rows] = field(default_factory=dict)
    reduced: dict[tuple[str, int, str], Rows] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """The nodes to run so that everything in `targets` is done."""
    initializers: list[str] = field(default_factory=list)
    collectives: int = 0
    """How many there are on each replica: all number them alike."""
    kept: list[Kept] = field(default_factory=list)
    """The variables that kernels added."""
    remembered: list[Remembered] = field(default_factory=list)
    """Their new values, to be written together with the update."""
    returned: dict[str, str] = field(default_factory=dict)
    """Where the values are that the update hands back, by the captured tensor's name."""

    @staticmethod
    def of(
        item: GraphItem, placement: Placement, active: int | Sequence[int] | None = None, sizes: Sequence[int] = ()
    ) -> Draft:
        """An empty draft of a captured step."""
        captured = StepIndex(item)
        require_distributable(captured)
        graph = captured.graph
        count = len(placement.replicas) if active is None else active
        indices = tuple(range(count)) if isinstance(count, int) else tuple(count)
        draft = Draft(captured, placement, indices, Editor(graph.library, graph.versions), tuple(sizes))
        if placement.shares_memory and len(indices) > 1:
            draft.products, draft.at_once = products(captured), with_weights(captured)
        return draft

    @property
    def late(self) -> frozenset[str]:
        """The captured nodes that wait for the whole batch's gradients; none where each replica goes by its own."""
        return frozenset() if self.placement.loose else after_update(self.captured)

    @property
    def handed_back(self) -> tuple[str, ...]:
        """What late nodes and results take from the update."""
        return () if self.placement.loose else handed_back(self.captured)

    @property
    def busy(self) -> tuple[Replica, ...]:
        """The replicas that have examples."""
        return tuple(self.placement.replicas[index] for index in self.active)

    def at(self, name: str) -> int:
        """The time at which a captured node touches variables; odd times lie between captured nodes."""
        return 2 * self.captured.index[name]

    @property
    def end(self) -> int:
        """The time at which every captured node is done."""
        return 2 * self.captured.end

    def handle(self, variable: str, copy: Copy) -> str:
        """The node that stands for one copy of a variable."""
        name = f"variable/{editor.safe(copy.name)}"
        if name not in self.editor:
            spec = self.captured.variables[variable]
            self.editor.add(
                "VarHandleOp", name, device=copy.device, dtype=tf.as_dtype(spec.dtype),
                shape=tf.TensorShape(spec.shape), shared_name=copy.name,
            )
        return name

    def read(self, name: str, variable: str, copy: Copy, order: int) -> str:
        """Add a read of one copy of a variable."""
        dtype = tf.as_dtype(self.captured.variables[variable].dtype)
        return self.editor.add("ReadVariableOp", name, [self.handle(variable, copy)], copy.device, order, dtype=dtype)

    def write(self, name: str, variable: str, copy: Copy, value: str, order: int) -> None:
        """Add a write of one copy of a variable; it counts as something the step must do."""
        dtype = tf.as_dtype(self.captured.variables[variable].dtype)
        inputs = [self.handle(variable, copy), value]
        self.targets.append(self.editor.add("AssignVariableOp", name, inputs, copy.device, order, dtype=dtype))

    def spec(self, variable: str) -> tf.TensorSpec:
        """Shape and type of a variable."""
        found = self.captured.variables[variable]
        return tf.TensorSpec(found.shape, tf.as_dtype(found.dtype))

    def fed(self, replica: Replica, name: str) -> str:
        """The placeholder that is fed a replica's part of one of the captured step's inputs."""
        of_known_size = f"{copied(replica, name)}/fed"
        return of_known_size if of_known_size in self.editor else copied(replica, name)

    def total(self) -> str:
        """The number of examples of the whole batch."""
        return self._count("feed/total", sum(self.sizes), self.placement.tasks.chief)

    def examples(self, replica: Replica) -> str:
        """A replica's number of examples."""
        size = self.sizes[self.active.index(replica.index)] if self.sizes else 0
        return self._count(f"feed/{replica.prefix}/examples", size, replica.host)

    def _count(self, name: str, known: int, device: str) -> str:
        """A constant if the graph is for known sizes, else a placeholder."""
        if name not in self.editor and self.sizes:
            self.editor.constant(name, float(known), tf.float64, device)
        elif name not in self.editor:
            self.editor.add("Placeholder", name, device=device, dtype=tf.float64, shape=tf.TensorShape([]))
        return name

    def share(self, replica: Replica, dtype: tf.DType) -> str:
        """A replica's part of the batch, n_r / N."""
        name = f"feed/{replica.prefix}/share"
        if name not in self.editor:
            self.editor.add(
                "RealDiv", name, [self.examples(replica), self.total()], replica.host, T=tf.float64
            )
        if dtype == tf.float64:
            return name
        cast = f"{name}_{dtype.name}"
        if cast not in self.editor:
            self.editor.add("Cast", cast, [name], replica.host, SrcT=tf.float64, DstT=dtype)
        return cast

    def add_up(self, name: str, values: Sequence[str], dtype: tf.DType, device: str) -> str:
        """The sum of tensors, added in the order given."""
        if len(values) == 1:
            return values[0]
        return self.editor.add("AddN", name, values, device, N=len(values), T=dtype)

    def join(self, name: str, values: Sequence[str], dtype: tf.DType, device: str, axis: int = 0) -> str:
        """Tensors one behind the other along an axis, the first if none is given."""
        if len(values) == 1:
            return values[0]
        place = self.editor.constant(f"{name}/axis", axis, tf.int32, device)
        return self.editor.add(
            "ConcatV2", name, [*values, place], device, N=len(values), T=dtype, Tidx=tf.int32
        )

    def stacked(self, name: str, dtype: tf.DType, device: str) -> str:
        """The rows of all busy replicas' copies of a captured tensor, one behind the other."""
        label = f"stacked/{editor.label(name)}"
        if label in self.editor:
            return label
        return self.join(label, [copied(replica, name) for replica in self.busy], dtype, device)

    def sources(self, gradient: Gradient) -> tuple[str, ...]:
        """The captured tensors of which every replica's copies go into the reduced gradient."""
        product = self.products.get((gradient.variable, gradient.occurrence))
        if product:
            return product.left, product.right
        return (gradient.values, gradient.indices) if gradient.indices else (gradient.values,)

    def reduced_for(self, gradient: Gradient, owner: Owner) -> Rows:
        """The reduced gradient on an owner's device; added up there if no synchronizer brought it."""
        key = (gradient.variable, gradient.occurrence, owner.name)
        if key not in self.reduced:
            self.reduced[key] = self.gather(gradient, owner)
        return self.reduced[key]

    def gather(self, gradient: Gradient, owner: Owner) -> Rows:
        """Bring a gradient of all busy replicas to an owner: added up if dense, all rows if sparse."""
        name = f"reduced/{owner.name}/{gradient.occurrence}/{editor.safe(gradient.variable)}"
        product = self.products.get((gradient.variable, gradient.occurrence))
        if product:
            return Rows(self._multiply(name, product, owner))
        found = []
        for team in self.teams():
            parts = [self.local[gradient.variable, gradient.occurrence, replica.index] for replica in team]
            found.append(self._reduce(f"{name}/{team[0].prefix}", gradient, parts, team[0].host))
        return self._reduce(name, gradient, found, owner.device)

    def teams(self) -> list[list[Replica]]:
        """The busy replicas of each machine, which reduce among themselves first; on one machine, each by itself."""
        by_host: dict[str, list[Replica]] = {}
        for replica in self.busy:
            by_host.setdefault(replica.host, []).append(replica)
        return list(by_host.values()) if len(by_host) > 1 else [[replica] for replica in self.busy]

    def at_host(self, value: str, dtype: tf.DType, replica: Replica) -> str:
        """A value where a replica's machine has it: it crosses the network once, for all replicas there."""
        if host_of(self.editor[editor.node_of(value)].device) == replica.host:
            return value
        host = replica.host.removesuffix("/device:CPU:0").strip("/").replace(":", "_")
        name = f"brought/{host}/{editor.label(value)}"
        if name not in self.editor:
            self.editor.add("Identity", name, [value], replica.host, T=dtype)
        return name

    def _reduce(self, name: str, gradient: Gradient, parts: Sequence[Rows], device: str) -> Rows:
        dtype = gradient_type(self.captured, gradient)
        if not gradient.indices:
            return Rows(self.add_up(name, [part.values for part in parts], dtype, device))
        if len(parts) == 1:
            return parts[0]
        ids = output_type_of_indices(self.captured, gradient)
        if gradient.rows == ALIKE:
            values = self.add_up(f"{name}/values", [part.values for part in parts], dtype, device)
            return Rows(values, parts[0].indices)
        rows = Rows(
            self.join(f"{name}/values", [part.values for part in parts], dtype, device),
            self.join(f"{name}/indices", [part.indices for part in parts], ids, device),
        )
        if gradient.rows == UNIQUE:
            shape = self.captured.variables[gradient.variable].shape[1:]
            specs = {rows.values: tf.TensorSpec((None, *shape), dtype), rows.indices: tf.TensorSpec((None,), ids)}
            return Rows(*self.editor.trace(f"{name}/merged", _merged, specs, device))
        return rows

    def _multiply(self, name: str, product: Product, owner: Owner) -> str:
        dtype = tf.as_dtype(product.node.attr["T"].type)
        factors = [
            self.stacked(editor.canonical(factor), dtype, owner.device) for factor in (product.left, product.right)
        ]
        return self.editor.copy(product.node, name, factors, owner.device).name


def _merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of which none occurs twice, in the order in which they first occur."""
    rows, places = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, places, tf.size(rows)), rows


def copied(replica: Replica, name: str) -> str:
    """A captured tensor's or node's copy on a replica."""
    return f"{replica.prefix}/{name}"


def gradient_type(captured: StepIndex, gradient: Gradient) -> tf.DType:
    """The type of a gradient's values."""
    return tf.as_dtype(captured.nodes[editor.node_of(gradient.values)].attr["T"].type)


def output_type_of_indices(captured: StepIndex, gradient: Gradient) -> tf.DType:
    """The type of a sparse gradient's row indices."""
    return tf.as_dtype(captured.nodes[editor.node_of(gradient.indices)].attr["T"].type)


class Kernel(ABC):
    """One step from a captured graph to a distributed one."""

    @property
    def name(self) -> str:
        """What the kernel is called in reports and errors."""
        return type(self).__name__

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Add this kernel's nodes to the draft."""


@dataclass(frozen=True)
class Change:
    """What one kernel did to the graph: counts of ops before and after."""

    kernel: str
    ops: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        changes = ", ".join(f"{op}: {before} -> {after}" for op, before, after in self.ops)
        return f"{self.kernel}: {changes or 'no change'}"


def run(draft: Draft, kernels: Sequence[Kernel]) -> tuple[Change, ...]:
    """Apply kernels in order; after each the graph is checked. An error says which kernels had already run."""
    changes: list[Change] = []
    for kernel in kernels:
        before = draft.editor.histogram()
        try:
            kernel.apply(draft)
            draft.editor.check()
        except AutodistError as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            error.add_note(f"while running kernel {kernel.name} (already run: {done})")
            raise
        except (KeyError, ValueError) as error:
            done = ", ".join(change.kernel for change in changes) or "none"
            raise KernelError(f"kernel {kernel.name} failed: {error!r} (already run: {done}).") from error
        after = draft.editor.histogram()
        ops = [(op, before.get(op, 0), count) for op, count in sorted(after.items()) if before.get(op, 0) != count]
        changes.append(Change(kernel.name, tuple(ops)))
    return tuple(changes)
