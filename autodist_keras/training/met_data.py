"""What the loops of one call have met of data: the same arrays, or the same dataset, may come again.

In: the arrays or the dataset of a loop. Out: a `Met`, which says how much of it was fed before, and what the machines
have of it.

>>> import numpy as np
>>> met, x = MetData(), np.ones(3)
>>> met.of([x]).sent = 0.5
>>> met.of([x]).sent, met.of([np.ones(3)]).sent
(0.5, 0.0)
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autodist_core.runtime import DataPipeline, KeptArrays


@dataclass(eq=False)
class Met:
    """Some data that a loop has met.

    >>> Met(()).kept is None
    True
    """

    parts: tuple[Any, ...]
    """Weak references to the arrays, or to the dataset."""
    by_file: bool = False
    """Whether each machine reads its part of the dataset's files."""
    sent: float = 0.0
    """How often the chief has sent all of it, in the batches of loops that were fed."""
    kept: KeptArrays | None = None
    """The arrays that the machines keep."""
    pipeline: tuple[DataPipeline, Any] | None = None
    """The pipeline that the machines run, and the dataset through which the user's process goes."""


@dataclass(eq=False)
class MetData:
    """All data that the loops of one call have met. The module has an example."""

    decided: list[Any] = field(default_factory=list)
    """The epoch iterators for which the way is decided."""
    met: list[Met] = field(default_factory=list)

    def of(self, parts: Sequence[Any], by_file: bool = False) -> Met:
        """What is known of these arrays, or of one dataset, which has other batches `by_file`.

        >>> import tensorflow as tf
        >>> MetData().of([tf.data.Dataset.range(3)]).pipeline is None
        True
        """
        self.met = [each for each in self.met if all(part() is not None for part in each.parts)]
        for each in self.met:
            known = [part() for part in each.parts]
            if each.by_file is by_file and [*map(id, known)] == [*map(id, parts)]:
                return each
        self.met.append(Met(tuple(weakref.ref(part) for part in parts), by_file))
        return self.met[-1]
