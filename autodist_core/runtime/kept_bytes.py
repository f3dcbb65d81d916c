"""How many bytes of data each machine keeps, so that a step does not feed them.

In: the environment. Out: a number of bytes, for arrays and for datasets.
"""

import os
from collections.abc import Mapping

KEPT_VARIABLE = "AUTODIST_KEPT_BYTES"
_KEPT_BYTES = 1 << 30
"""The most bytes of arrays that each machine keeps, unless the environment variable says otherwise."""
SMALL_GRAPH = 1 << 20
"""The graph of a dataset with fewer bytes is sent without asking what the steps would send."""


def kept_limit(environment: Mapping[str, str] = os.environ) -> int:
    """The most bytes of arrays that each machine keeps.

    >>> kept_limit({}), kept_limit({"AUTODIST_KEPT_BYTES": "0"})
    (1073741824, 0)
    >>> kept_limit({"AUTODIST_KEPT_BYTES": "2 GB"})
    Traceback (most recent call last):
    ValueError: AUTODIST_KEPT_BYTES='2 GB' is no number of bytes, such as 2000000000, or 0 to feed every batch.
    """
    text = environment.get(KEPT_VARIABLE, str(_KEPT_BYTES))
    if not text.strip().isdecimal():
        raise ValueError(
            f"{KEPT_VARIABLE}={text!r} is no number of bytes, such as 2000000000, or 0 to feed every batch."
        )
    return int(text)
