"""The partitioning of a variable: the axis that is split, the number of shards and their sizes.

Builders choose the number of shards with :func:`shard_count` or :func:`uneven_shard_count`, and write a
:class:`PartitionerConfig` into the strategy as text. The compiler and the partitioning kernel read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from autodist_core.errors import StrategyError


@dataclass(frozen=True, init=False, repr=False)
class PartitionerConfig:
    """The number of shards along each axis, as a list and as the string that a strategy's ``partitioner`` holds.

    Exactly one axis is split. Pass either the list or the string. In the string, the sizes of the shards in proportion
    to each other may stand in place of their number.

    >>> config = PartitionerConfig(partition_str="1, 2, 1")
    >>> config.partition_list, config.partition_str, config.axis, config.num_shards
    ([1, 2, 1], '1,2,1', 1, 2)
    >>> config = PartitionerConfig(partition_str="1,1:2:2")
    >>> config.partition_list, config.shares, config.sizes(100)
    ([1, 3], (1, 2, 2), (20, 40, 40))
    >>> PartitionerConfig(partition_list=[1, 1])
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: partitioner [1, 1]: write the number of shards along each axis, ...
    """

    _counts: tuple[int, ...]
    shares: tuple[int, ...]
    """The sizes of the shards in proportion to each other; empty if they are alike."""

    def __init__(self, partition_list: Sequence[int] | None = None, partition_str: str | None = None) -> None:
        if (partition_list is None) == (partition_str is None):
            raise StrategyError("PartitionerConfig takes either partition_list or partition_str, and one of them only.")
        if partition_str is None:
            counts, shares = list(partition_list or ()), []
        else:
            parts = [[_number(each) for each in part.split(":")] for part in str(partition_str).split(",")]
            counts = [part[0] if len(part) == 1 else len(part) * (0 not in part) for part in parts]
            shares = [share for part in parts if len(part) > 1 for share in part]
        if any(type(count) is not int or count < 1 for count in counts) or sum(count > 1 for count in counts) != 1:
            written = list(partition_list or ()) if partition_str is None else partition_str
            raise StrategyError(
                f"partitioner {written!r}: write the number of shards along each axis, 1 for an axis that is not "
                "split, and 2 or more for one axis, such as '1,2,1', or the sizes of its shards in proportion to each "
                "other, such as '1,3:4,1'. Leave it empty for a variable in one piece."
            )
        object.__setattr__(self, "_counts", tuple(counts))
        object.__setattr__(self, "shares", tuple(shares))

    @property
    def partition_str(self) -> str:
        """The string form, such as ``1,2,1`` or ``1,3:4,1``."""
        shares = ":".join(map(str, self.shares))
        return ",".join(shares if count > 1 and shares else str(count) for count in self._counts)

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

    def sizes(self, dimension: int) -> tuple[int, ...]:
        """The sizes of the shards of an axis of so many entries."""
        return shard_sizes(dimension, self.num_shards, self.shares)

    @classmethod
    def along(cls, axis: int, shards: int, rank: int, shares: Sequence[int] = ()) -> PartitionerConfig:
        """Return the config that splits one axis of a variable of ``rank`` axes.

        >>> PartitionerConfig.along(axis=1, shards=2, rank=3)
        PartitionerConfig(partition_str='1,2,1')
        """
        split = ":".join(map(str, shares)) or str(shards)
        return cls(partition_str=",".join(split if position == axis else "1" for position in range(rank)))

    def __repr__(self) -> str:
        return f"PartitionerConfig(partition_str={self.partition_str!r})"


def _number(text: str) -> int:
    """A positive number; 0 for what is none, such as "+1", "1_0" and digits of other scripts, which `int` accepts."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def shard_sizes(dimension: int, shards: int, shares: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the sizes of the shards of an axis, as ``numpy.array_split`` divides it, or in proportion to `shares`.

    The first shards are larger by one entry if the number of shards does not divide the dimension.

    >>> shard_sizes(10, 4), shard_sizes(10, 3, (1, 2, 2))
    ((3, 3, 2, 2), (2, 4, 4))
    """
    if shares:
        ends = [dimension * end // sum(shares) for end in accumulate(shares)]
        return tuple(end - start for start, end in pairwise([0, *ends]))
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
