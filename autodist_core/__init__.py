"""The core of autodist-keras: from a captured train step and a description of machines to a distributed one.

The stages, in the order of the flow: ``resource_spec`` and ``graph_item`` (the inputs), ``strategy`` (builders decide
how each variable is synchronized), ``compiler`` and ``plan`` (the decision, checked, frozen, printed), ``capture``,
``kernel`` and ``runtime``. What is named here is the planning half: importing it imports no TensorFlow.
"""

from autodist_core import errors, plan, strategy
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

__all__ = [
    "AutodistError",
    "CaptureError",
    "CompiledStrategy",
    "DeviceSpec",
    "Gradient",
    "GraphItem",
    "KernelError",
    "LaunchError",
    "Node",
    "NodeLostError",
    "NotYetError",
    "ResourceSpec",
    "ResourceSpecError",
    "SSHGroup",
    "SeamError",
    "SessionError",
    "Strategy",
    "StrategyBuilder",
    "StrategyCompiler",
    "StrategyError",
    "Table",
    "Tensor",
    "Variable",
    "errors",
    "plan",
    "strategy",
]
