"""Objects that are compared by identity, as parts of keys and of what is compared later."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Same:
    """An object that is equal to itself only. It stays alive here, so no other one gets its `id`.

    >>> one, two = [], []
    >>> one == two, Same(one) == Same(two), Same(one) == Same(one)
    (True, False, True)
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
