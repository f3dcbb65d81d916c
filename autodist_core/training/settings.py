"""The settings of a training: a frozen value, checked as it is made.

In: what a user passes to a front, such as `DistributedModel`, or sets on it later. Out: `Settings`, with a
`ResourceSpec` and a strategy builder. The sessions, and the front's reports, read them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from autodist_core.auto import NAMES
from autodist_core.cluster.chief.fleet import on_failure_choice, seconds_choice
from autodist_core.errors import ResourceSpecError, StrategyError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy import Strategy, StrategyBuilder, resolve


def _resource_spec(value: Any) -> ResourceSpec:
    named = isinstance(value, str) and value in NAMES and not Path(value).exists()
    builds = isinstance(value, type) and issubclass(value, StrategyBuilder)
    if named or builds or isinstance(value, StrategyBuilder | Strategy):
        shown = value.__name__ if builds else repr(value)
        raise ResourceSpecError(
            f"resource_spec={shown}: that is a strategy; the second argument is the cluster (a YAML file, a dict, a "
            f"ResourceSpec, or None for this machine), and the strategy is the third: strategy={shown}."
        )
    return value if isinstance(value, ResourceSpec) else ResourceSpec(value)


def _one_of(name: str, choices: str, error: type[Exception], value: Any) -> Any:
    if not isinstance(value, bool) and (value is not None or "None" not in choices):
        raise error(f"{name}={value!r}: {name} is {choices}. Received: {type(value).__name__}.")
    return value


def _keep_state(value: Any) -> Any:
    if value not in (None, "model", "machines"):
        raise ResourceSpecError(f"keep_state={value!r}: keep_state is 'model', 'machines' or None.")
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "resource_spec": _resource_spec,
    "strategy": partial(resolve, builders=NAMES),
    "share_memory": partial(_one_of, "share_memory", "True, False or None", StrategyError),
    "fused_kernels": partial(_one_of, "fused_kernels", "True, False or None", StrategyError),
    "on_failure": on_failure_choice,
    "lost_after": partial(seconds_choice, "lost_after", 0.1),
    "tunnelled": partial(_one_of, "tunnelled", "True or False", ResourceSpecError),
    "keep_state": _keep_state,
    "backup_every": lambda value: None if value is None else seconds_choice("backup_every", 0, value),
}


@dataclass(frozen=True)
class Settings:
    """The settings of a training; `DistributedModel` describes them. Every instance has passed its checks.

    >>> settings = Settings(ResourceSpec.local(cpus=2), "PS")
    >>> type(settings.strategy).__name__, settings.replicas, settings.fuses
    ('PS', 2, True)
    """

    resource_spec: ResourceSpec
    strategy: StrategyBuilder
    share_memory: bool | None = None
    fused_kernels: bool | None = None
    on_failure: str = "raise"
    lost_after: float = 60.0
    tunnelled: bool = False
    backup_every: float | None = None
    keep_state: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name)))

    @property
    def of_the_cluster(self) -> tuple[ResourceSpec, str, float, bool]:
        """The settings with which machines are started."""
        return self.resource_spec, self.on_failure, self.lost_after, self.tunnelled

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return len(self.resource_spec.replica_devices)

    @property
    def fuses(self) -> bool:
        """Whether updates and batch normalization run in TensorFlow's kernels."""
        return self.replicas > 1 if self.fused_kernels is None else self.fused_kernels


SETTINGS = tuple(field.name for field in fields(Settings))
