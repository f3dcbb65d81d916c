"""The deadlines of a cluster's start, in seconds. AUTODIST_DEADLINES="connect=5,answer=10" changes some of them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields

from autodist_core.errors import LaunchError, did_you_mean

VARIABLE = "AUTODIST_DEADLINES"


@dataclass(frozen=True)
class Deadlines:
    """Seconds that the chief waits for one node; it waits for all nodes at the same time.

    >>> Deadlines(connect=5.0).connect, Deadlines().connect
    (5.0, 30.0)
    """

    connect: float = 30.0
    """Until an agent is started over ssh."""
    answer: float = 30.0
    """Until an agent has carried out an order and answered."""
    reach: float = 10.0
    """Until a node has reached another node."""
    serve: float = 120.0
    """Until an agent has imported TensorFlow and started its server."""
    scheduled: float = 300.0
    """Until an agent that a scheduler starts answers at its port."""

    @classmethod
    def from_environment(cls) -> Deadlines:
        """The deadlines that AUTODIST_DEADLINES sets, and the defaults of the others.

        >>> import os
        >>> os.environ["AUTODIST_DEADLINES"] = "connect=5, answer=2.5"
        >>> Deadlines.from_environment()
        Deadlines(connect=5.0, answer=2.5, reach=10.0, serve=120.0, scheduled=300.0)
        >>> os.environ["AUTODIST_DEADLINES"] = "conect=5"
        >>> Deadlines.from_environment()
        Traceback (most recent call last):
        autodist_core.errors.LaunchError: AUTODIST_DEADLINES='conect=5': 'conect=5' is not one of connect, answer,
        reach, serve, scheduled with '=' and a positive number of seconds. Did you mean 'connect'?
        >>> del os.environ["AUTODIST_DEADLINES"]
        """
        text = os.environ.get(VARIABLE, "")
        names = [field.name for field in fields(cls)]
        settings = {}
        for part in text.split(",") if text.strip() else ():
            name, _, number = (word.strip() for word in part.partition("="))
            try:
                seconds = float(number)
            except ValueError:
                seconds = 0.0
            if name not in names or not 0 < seconds < math.inf:
                hint = "" if name in names else did_you_mean(name, names)
                raise LaunchError(
                    "",
                    f"{VARIABLE}={text!r}: {part.strip()!r} is not one of {', '.join(names)} with '=' and a positive "
                    f"number of seconds.{hint}",
                )
            settings[name] = seconds
        return cls(**settings)
