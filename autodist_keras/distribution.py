"""The devices and the strategy that `keras.distribution` describes.

In: a `DeviceMesh`, `DataParallel` or `ModelParallel`, in place of a cluster. Out: a `ResourceSpec` of this machine, and
the strategy builder that does what the layouts say.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import keras

from autodist_core.errors import ResourceSpecError, StrategyError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy import Parallax, Strategy, StrategyBuilder
from autodist_core.strategy.options import PSOptions, replica_devices, spread


def understood(model: Any, devices: Any, strategy: Any) -> tuple[Any, Any]:
    """The resource spec and the strategy that `devices` stands for; anything else than a distribution is left as it is.

    >>> two = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    >>> spec, strategy = understood(keras.Sequential(), two, None)
    >>> print(spec)
    resource spec: 1 node, 0 GPUs, 2 CPUs
      localhost (chief): cpus [0, 1], 1 Gbit/s
    """
    mesh = devices if isinstance(devices, keras.distribution.DeviceMesh) else getattr(devices, "device_mesh", None)
    if mesh is None:
        return devices, strategy
    names = [str(name).lower() for name in mesh.devices.flat]
    if not re.fullmatch(r"(cpu:\d+ ?)+|(gpu:\d+ ?)+", " ".join(names)):
        raise ResourceSpecError(f"{devices!r} has the devices {names}: expected 'cpu:0', 'cpu:1', ... or 'gpu:0', ...")
    if isinstance(devices, keras.distribution.ModelParallel):
        if strategy is not None:
            raise StrategyError(
                f"strategy={strategy!r} was given beside a ModelParallel, which is a strategy itself: give one of both."
            )
        strategy = Layouts(model.name, devices.get_variable_layout, dict(zip(mesh.axis_names, mesh.shape, strict=True)))
    node = {"address": "localhost", f"{names[0][:3]}s": [int(name[4:]) for name in names]}
    return ResourceSpec({"nodes": [node]}), strategy


@dataclass(frozen=True)
class Layouts(StrategyBuilder):
    """Splits the variables that a `keras.distribution.LayoutMap` splits; the others are as `Parallax` has them.

    A replica gathers the parts when it uses them. Every device is a replica, whatever axis of the mesh it is on.

    >>> mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    >>> layouts = keras.distribution.LayoutMap(mesh)
    >>> layouts["m/dense/kernel"] = (None, "model")
    >>> layouts["m/dense/bias"] = ("model",)
    >>> item = GraphItem((Variable("dense/kernel", (4, 6), "float32"), Variable("dense/bias", (1,), "float32")))
    >>> layout_of = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").get_variable_layout
    >>> print(Layouts("m", layout_of, {"batch": 1, "model": 2}).build(item, ResourceSpec.local(2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : split(axis=1, shards=2) ps(localhost:CPU:0, localhost:CPU:1, gathered=True)
      dense/bias   : all_reduce(group=0)
    """

    model: str
    layouts: Any = field(repr=False)
    sizes: Mapping[str, int]
    """The number of devices along each axis of the mesh."""

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        notes: list[str] = []
        variables = graph_item.trainable_var_op_to_var.values()
        cuts = {each.name: self._cut(each, notes) for each in variables}
        split = GraphItem(tuple(each for each in variables if cuts[each.name][1] > 1))
        if not split.variables:
            notes.append(f"the layouts split no variable: a key is searched for in names as {self.model}/dense/bias")
        owners, cut = replica_devices(resource_spec), lambda variable: cuts[variable.name]
        nodes = {node.var_name: node for node in Parallax().build(graph_item, resource_spec).nodes}
        gathered = spread(split, PSOptions(), owners, cut, lambda *_: {"gathered": True})
        nodes |= {node.var_name: node for node in gathered}
        return Strategy.of(owners, nodes.values(), notes)

    def _cut(self, variable: Variable, notes: list[str]) -> tuple[int, int]:
        """The axis along which a variable is split, and the number of parts; 1 if it stays whole."""
        # A layout names a variable with the model's name or without it.
        paths = f"{self.model}/{variable.name}", variable.name
        found = (self.layouts(SimpleNamespace(path=path, shape=variable.shape)).axes for path in paths)
        axes = next(filter(any, found), ())
        names = {axis: name for axis, name in enumerate(axes) if name}
        if max(names, default=0) >= max(len(variable.shape), 1) or not self.sizes.keys() >= set(names.values()):
            raise StrategyError(
                f"the layout {axes} does not fit variable {variable.name!r} of shape {variable.shape}: expected None "
                f"or an axis of the mesh ({', '.join(self.sizes)}) for each of its axes."
            )
        cuts = [(axis, self.sizes[name]) for axis, name in names.items() if self.sizes[name] > 1]
        if not cuts:
            return 0, 1
        axis = 0 if variable.is_sparse else cuts[0][0]  # the rows of a table go to the owners whole
        if [axis] != [each for each, _ in cuts]:
            notes.append(f"{variable.name} has the layout {axes}, and only its axis {axis} is split")
        return axis, min(cuts[0][1], variable.shape[axis])
