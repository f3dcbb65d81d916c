"""The compressors' state outside a session: between two sessions, and in what a program or a callback keeps.

In: the values that `Session.read_added` returns. Out: values for `Session.load_added`::

    CompressorState("3f9c21", {"compressor/error/kernel@replica0": zeros})
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autodist_core.log import log


@dataclass(frozen=True, eq=False)
class CompressorState:
    """The state of a strategy's compressors: residuals and directions, by name and replica."""

    strategy: str
    """The strategy's id. Another strategy cannot use these values."""
    values: Mapping[str, np.ndarray]

    def for_strategy(self, strategy: str) -> Mapping[str, np.ndarray]:
        """The values for a session of this strategy; none, and a line in the log, if they are another strategy's.

        >>> CompressorState("3f9c21", {"error": np.zeros(2)}).for_strategy("3f9c21")
        {'error': array([0., 0.])}
        """
        if strategy == self.strategy or not self.values:
            return self.values
        log.warning(
            "The compressors start anew: what they kept was strategy %s's, and this is strategy %s.",
            self.strategy, strategy,
        )
        return {}
