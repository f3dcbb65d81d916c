"""Builders as text: `AllReduce(chunk_size=1)` on a command line, and in the head of a plan.

In: a text, or a builder. Out: the builder, or its name with the options that differ from their defaults. Values of
options are literals. Nothing in the text is evaluated.
"""

import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from autodist_core.errors import StrategyError
from autodist_core.strategy import BUILDERS, Finished, resolve
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.parallax import Default


def read_builder(text: str | None, builders: Mapping[str, type[StrategyBuilder]] = BUILDERS) -> StrategyBuilder:
    """Return that of the builders that a text names, with options or without; ``None`` stands for the default one.

    >>> read_builder("PS(staleness=2)")
    PS(local_proxy_variable=False, sync=True, staleness=2)
    >>> read_builder("PS(stalenes=2)")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: PS(stalenes=2): PS.__init__() got an unexpected keyword argument 'stalenes'...
    """
    if text is None or "(" not in text:
        return resolve(text, builders)
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("it is no name with options")
        options: dict[Any, Any] = {option.arg: ast.literal_eval(option.value) for option in call.keywords}
        if None in options or len(options) < len(call.keywords):
            raise ValueError("an option stands there without a name, or twice")
    except (SyntaxError, TypeError, ValueError) as error:
        name = text.partition("(")[0].strip()
        raise StrategyError(
            f"strategy {text!r} cannot be read. Expected Name(option=value, ...), such as "
            f"{name if name in builders else 'AllReduce'}(...), with each option once. A value is a number, a text in "
            "quotes, True, False or None."
        ) from error
    builder = type(resolve(call.func.id, builders))
    try:
        return builder(**options)
    except TypeError as error:
        raise StrategyError(f"{text}: {error}.") from None


def written(builder: StrategyBuilder) -> str:
    """Return a builder's name, with the options that differ from their defaults; empty for a finished strategy.

    >>> from autodist_core.strategy import PS, AllReduce, Strategy
    >>> written(PS()), written(AllReduce(chunk_size=1)), written(resolve(None)), written(resolve(Strategy()))
    ('PS', 'AllReduce(chunk_size=1)', 'Parallax', '')
    """
    if isinstance(builder, Finished):
        return ""
    name = "Parallax" if type(builder) is Default else type(builder).__name__
    declared: list[Any] = [each for each in fields(builder) if each.init and each.repr] if is_dataclass(builder) else []
    options = [
        f"{option.name}={getattr(builder, option.name)!r}" for option in declared
        if getattr(builder, option.name) != option.default
    ]
    return f"{name}({', '.join(options)})" if options else name
