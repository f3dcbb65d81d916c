"""Where in a model random numbers are drawn: the layer's name, for the notes on them.

In: a model, and a draw of its captured step. Out: a name. The notes themselves are in `autodist_core.reports`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autodist_core.step.draws import Draw


def place_of_draw(layers: Sequence[Any], draw: Draw) -> str:
    """The layer that draws random numbers, found by the scopes in the operation's name; else the operation's name.

    >>> import keras
    >>> from autodist_core.step.draws import Stream
    >>> draw = Draw(("drop_1/uniform",), "RandomUniform", Stream.ATTRIBUTE)
    >>> place_of_draw([keras.layers.Dropout(0.5, name="drop")], draw)
    'drop'
    """
    names = {layer.name for layer in layers}
    for scope in reversed("/".join(draw.path).split("/")):
        # A layer opens its scope when it is built and again when it is called. TensorFlow numbers the second scope.
        for name in (re.sub(r"_[0-9]+$", "", scope), scope):
            if name in names:
                return name
    return draw.path[-1]
