"""The partitioning of a variable: the axis that is split, the number of shards and their sizes.

Builders choose the number of shards with :func:`shard_count` or :func:`uneven_shard_count`, and write a
:class:`PartitionerConfig` into the strategy as text. The compiler and the partitioning kernel read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autodist_core.errors import StrategyError


@dataclass(frozen=True, init=False, repr=False)
class PartitionerConfig:
    """The number of shards along each axis, as a list and as the string that a strategy's ``partitioner`` holds.

    Exactly one axis is split. Pass either the list or the string.

    >>> config = PartitionerConfig(partition_str="1, 2, 1")
    >>> config.partition_list, config.partition_str, config.axis, config.num_shards
    ([1, 2, 1], '1,2,1', 1, 2)
    >>> PartitionerConfig(partition_list=[1, 1])
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: partitioner [1, 1]: write the number of shards along each axis, ...
    """

    _counts: tuple[int, ...]

    def __init__(self, partition_list: Sequence[int] | None = None, partition_str: str | None = None) -> None:
        if (partition_list is None) == (partition_str is None):
            raise StrategyError("PartitionerConfig takes either partition_list or partition_str, and one of them only.")
        if partition_str is None:
            counts = list(partition_list or ())
        else:
            # int() also accepts "+1", "1_0" and the digits of other scripts, which are refused here.
            parts = [part.strip() for part in str(partition_str).split(",")]
            counts = [int(part) if part.isascii() and part.isdecimal() else 0 for part in parts]
        if any(type(count) is not int or count < 1 for count in counts) or sum(count > 1 for count in counts) != 1:
            written = list(partition_list or ()) if partition_str is None else partition_str
            raise StrategyError(
                f"partitioner {written!r}: write the number of shards along each axis, 1 for an axis that is not "
                "split, and 2 or more for one axis, such as '1,2,1'. Leave it empty for a variable in one piece."
            )
        object.__setattr__(self, "_counts", tuple(counts))

    @property
    def partition_str(self) -> str:
        """The string form, such as ``1,2,1``."""
        return ",".join(map(str, self._counts))

    @property
    def partition_list(self) -> list[int]:
        """The list form, such as ``[1, 2, 1]``."""
        return list(self._counts)

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return max(self._counts)

    @property
    def axis(self) -> int:
        """The axis that is split."""
        return self._counts.index(self.num_shards)

    @classmethod
    def along(cls, axis: int, shards: int, rank: int) -> PartitionerConfig:
        """Return the config that splits one axis of a variable of ``rank`` axes.

        >>> PartitionerConfig.along(axis=1, shards=2, rank=3)
        PartitionerConfig(partition_str='1,2,1')
        """
        return cls(partition_list=[shards if position == axis else 1 for position in range(rank)])

    def __repr__(self) -> str:
        return f"PartitionerConfig(partition_str={self.partition_str!r})"


def shard_sizes(dimension: int, shards: int) -> tuple[int, ...]:
    """Return the sizes of the shards of an axis, as ``numpy.array_split`` divides it.

    The first shards are larger by one entry if the number of shards does not divide the dimension.

    >>> shard_sizes(10, 4)
    (3, 3, 2, 2)
    """
    size, larger = divmod(dimension, shards)
    return (size + 1,) * larger + (size,) * (shards - larger)


def shard_count(dimension: int, owners: int) -> int:
    """Return the number of shards for an axis that is spread over ``owners`` devices; 1 means not partitioned.

    The number is the smallest divisor of the dimension from 2 on, if that makes at most two shards for each owner.
    Otherwise there is one shard for each owner, and the shards are uneven. A prime dimension is an example: its
    smallest divisor would make one shard for each row.

    >>> [shard_count(dimension, owners=4) for dimension in (10, 9, 10007, 3, 1)]
    [2, 3, 4, 3, 1]
    >>> shard_count(10, owners=1)
    1
    """
    if owners < 2 or dimension < 2:
        return 1
    return next((count for count in range(2, 2 * owners + 1) if dimension % count == 0), min(dimension, owners))


def uneven_shard_count(dimension: int, owners: int) -> int:
    """Return the smallest number of shards from 2 on that does not divide the dimension.

    The result is 1, which means not partitioned, if there is no such number or only one owner.

    >>> [uneven_shard_count(dimension, owners=2) for dimension in (12, 7, 2, 1)]
    [5, 2, 1, 1]
    """
    return next((count for count in range(2, dimension + 1) if dimension % count), 1) if owners > 1 else 1
