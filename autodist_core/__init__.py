"""The core of autodist-keras. It makes a distributed train step from a captured one and a description of machines.

The stages, in the order of the flow:

- ``resource_spec`` describes the machines, and ``step`` the captured train step.
- ``strategy``: a builder decides how each variable is synchronized, and the compiler checks and freezes the decision.
- ``plan`` prints the decision.
- ``capture`` makes the captured step from a traced TensorFlow function.
- ``kernel`` builds the distributed graph, and ``forecast`` tells what memory it needs.
- ``auto`` predicts the time of a step, and chooses the strategy.
- ``cluster`` starts the agents on the machines, and ``runtime`` runs the steps.
- ``training`` keeps the session and the variables one state.
- ``reports`` makes the plan of a captured step, and compares a training with one device.
- ``loops`` runs the functions of a training loop that a user writes: ``AutoDist``.
- ``command_line`` is the command ``autodist``.

All stages use ``errors``, ``log`` (what the project says while it runs), ``give_back`` (freed memory), ``interrupts``,
``proto`` (the messages in which strategies and steps are stored) and ``seams`` (what is used of TensorFlow that is not
its public API).

This package exports the planning half, which is the first three items, and ``AutoDist``, ``distribute`` and
``whole_batch``. Importing the planning half does not import TensorFlow.

>>> from autodist_core.strategy import PS
>>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
>>> print(plan.Plan(plan.plan_table(StrategyCompiler(item, spec).compile(PS().build(item, spec)))))
strategy ... @ 2 replicas
  replica localhost:CPU:0
  replica localhost:CPU:1
  w : f32[3,2]  ps(localhost:CPU:0)  24 B  48 B/step
  total: 1 variable, 24 B; 48 B travel between devices per step
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autodist_core import errors, log, plan, strategy
from autodist_core.errors import (
    AutodistError,
    CaptureError,
    KernelError,
    LaunchError,
    NodeLostError,
    NotYetError,
    ResourceSpecError,
    SeamError,
    SessionError,
    StrategyError,
)
from autodist_core.resource_spec import DeviceSpec, Node, ResourceSpec, SSHGroup
from autodist_core.step.graph_item import Gradient, GraphItem, Table, Tensor, Variable
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.strategy.strategy import Strategy

if TYPE_CHECKING:
    from autodist_core.capture import whole_batch
    from autodist_core.loops import AutoDist
    from autodist_core.loops.distribute import distribute

__all__ = [
    "AutoDist", "AutodistError", "CaptureError", "CompiledStrategy", "DeviceSpec", "Gradient", "GraphItem",
    "KernelError", "LaunchError", "Node", "NodeLostError", "NotYetError", "ResourceSpec", "ResourceSpecError",
    "SSHGroup", "SeamError", "SessionError", "Strategy", "StrategyBuilder", "StrategyCompiler", "StrategyError",
    "Table", "Tensor", "Variable", "distribute", "errors", "plan", "strategy", "whole_batch",
]  # fmt: skip

_WITH_TENSORFLOW = {
    "AutoDist": "autodist_core.loops", "distribute": "autodist_core.loops.distribute",
    "whole_batch": "autodist_core.capture",
}
"""The module of each name that needs TensorFlow."""

log.set_up()


def __getattr__(name: str) -> Any:
    """Import what needs TensorFlow when it is asked for: planning does without."""
    if name not in _WITH_TENSORFLOW:
        raise AttributeError(f"module 'autodist_core' has no attribute {name!r}")
    return getattr(import_module(_WITH_TENSORFLOW[name]), name)
