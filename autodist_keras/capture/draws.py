"""Where in a model an operation is: the layer's name, for the notes on draws and on types.

In: a model, and a draw of its captured step, or an operation's name. Out: a name. The notes themselves are in
`autodist_core.reports` and `autodist_keras.reports`.
"""

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
    return place_of("/".join(draw.path), layers) or draw.path[-1]


def place_of(operation: str, layers: Sequence[Any]) -> str:
    """The layer in whose scopes an operation is; nothing if it is in none.

    >>> import keras
    >>> place_of("step/drop_1/uniform", [keras.layers.Dropout(0.5, name="drop")]), place_of("step/uniform", [])
    ('drop', '')
    """
    names = {layer.name for layer in layers}
    for scope in reversed(operation.split("/")):
        # A layer opens its scope when it is built and again when it is called. TensorFlow numbers the second scope.
        for name in (re.sub(r"_[0-9]+$", "", scope), scope):
            if name in names:
                return name
    return ""
