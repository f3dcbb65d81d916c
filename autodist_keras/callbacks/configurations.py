"""A configuration of Keras as a text that is the same in each process in which a program builds the same.

In: what `get_config` and `get_compile_config` return. Out: a text. Keras numbers the names of layers, optimizers and
losses anew in each process, and in a notebook with each run of a cell. A lambda is its code, without the place where
it stands in a file.

>>> text_of({"name": "dense_3", "units": 2}) == text_of({"name": "dense", "units": 2})
True
>>> text_of({"name": "mixed_bfloat16"}) == text_of({"name": "float32"})
False
"""

from __future__ import annotations

import base64
import json
import marshal
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

_NUMBER = re.compile(r"_\d+$")


def text_of(config: Any, without: Callable[[str, Any], bool] = lambda key, value: False) -> str:
    """A configuration as text, without the entries of dictionaries that `without` names. The module has an example.

    >>> text_of({"units": 2, "bias_initializer": "zeros"}, lambda key, value: key.endswith("initializer"))
    '{"units": 2}'
    """
    return json.dumps(_plain(config, without), default=lambda value: type(value).__name__, sort_keys=True)


def _plain(config: Any, without: Callable[[str, Any], bool]) -> Any:
    if isinstance(config, dict):
        if config.get("class_name") == "__lambda__":
            return _of_lambda(config)
        return {
            str(key): _unnumbered(each) if key == "name" else _plain(each, without)
            for key, each in config.items() if not without(str(key), each)
        }
    if not isinstance(config, list | tuple):
        return config
    if [type(part) for part in config] == [str, int, int]:  # an output of a layer, as a functional model names it
        return [_unnumbered(config[0]), *config[1:]]
    return [_plain(part, without) for part in config]


def _unnumbered(name: Any) -> Any:
    return _NUMBER.sub("", name) if isinstance(name, str) else name


def _of_lambda(config: dict[str, Any]) -> Any:
    """The code of a lambda that Keras has serialized in this process, its defaults and what it refers to."""
    try:
        code, *others = config["config"]["value"]
        return [_of_code(marshal.loads(base64.b64decode(code))), others]
    except Exception:  # Keras has written it in another way
        return config


def _of_code(code: CodeType) -> list[Any]:
    constants = [_of_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return [code.co_code.hex(), [*code.co_names, *code.co_varnames, *code.co_freevars], constants]
