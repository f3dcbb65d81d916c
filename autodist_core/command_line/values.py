"""The values of options: read from their words, or refused with what was expected and received."""

import math
from argparse import ArgumentTypeError


def seconds(word: str) -> float:
    """A number of seconds above 0.

    >>> seconds("0.5")
    0.5
    >>> seconds("soon")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a number of seconds above 0, received 'soon'
    """
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ArgumentTypeError(f"expected a number of seconds above 0, received {word!r}")
    return number


def port(word: str) -> int:
    """The number of a port, from 1 to 65535.

    >>> port("8888")
    8888
    """
    if not (word.isdecimal() and 0 < int(word) < 65536):
        raise ArgumentTypeError(f"expected a port from 1 to 65535, received {word!r}")
    return int(word)
