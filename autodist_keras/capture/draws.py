"""Where in a model an operation is: the layer's name, for the notes on draws and on types.

In: a model, and a draw of its captured step, or an operation's name. Out: a name. The notes themselves are in
`autodist_core.reports` and `autodist_keras.reports`.
"""

import re
from collections.abc import Container, Sequence
from itertools import chain
from typing import Any

from autodist_core.step.draws import Draw

_COUNTED = re.compile(r"_\d+$")


def place_of_draw(layers: Sequence[Any], draw: Draw) -> str:
    """The layer that draws random numbers, found by the scopes in the operation's name; else the operation's name.

    >>> import keras
    >>> from autodist_core.step.draws import Stream
    >>> draw = Draw(("drop_1/uniform",), "RandomUniform", Stream.ATTRIBUTE)
    >>> place_of_draw([keras.layers.Dropout(0.5, name="drop")], draw)
    'drop'
    """
    return place_of("/".join(draw.path), {layer.name for layer in layers}) or draw.path[-1]


def place_of(operation: str, names: Container[str]) -> str:
    """The layer or loss, one of `names`, in whose scopes an operation is; nothing if it is in none.

    >>> place_of("step/drop_1/uniform", {"drop"}), place_of("step/uniform", {"drop"})
    ('drop', '')
    """
    # TensorFlow numbers scopes of one name.
    scopes = ((scope, _COUNTED.sub("", scope)) for scope in reversed(operation.split("/")[:-1]))
    return next((name for name in chain.from_iterable(scopes) if name in names), "")
