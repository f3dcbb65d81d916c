"""The strategy that chooses itself, `Auto`: it predicts the time of a step for many strategies, and takes the best.

The modules in the order of the flow: `profiles` has what is known of a model and a cluster, and what is assumed.
`of_step` reads the profile of a captured step; it alone needs TensorFlow. `charges` says what one variable adds to a
step, and `prediction` adds that up. `choosing` tries the builders, `trial` does so for a captured step, `improving`
changes single variables, and `builder` is `Auto`, and says why. `comparison` is the table of all builders.
"""

from collections.abc import Mapping
from types import MappingProxyType

from autodist_core.auto.builder import Auto, beside_measured
from autodist_core.auto.profiles import StepTimes
from autodist_core.strategy import BUILDERS, StrategyBuilder

__all__ = ["NAMES", "Auto", "StepTimes", "beside_measured"]

NAMES: Mapping[str, type[StrategyBuilder]] = MappingProxyType({**BUILDERS, "auto": Auto})
"""The builders by name, with the one that chooses among them."""
