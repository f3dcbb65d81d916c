"""A text that a notebook shows in a form of its own: the plan, and the report on where a step's time goes.

In: a value with the content. Out: a string that keeps the value. A class says how its value becomes text and HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class Shown(str, Generic[T]):
    """A string that a notebook shows as HTML.

    >>> class Count(Shown[int]):
    ...     forms = "{} devices".format, "<div>{}</div>".format
    >>> count = Count(2)
    >>> count, count.table, count._repr_html_()
    ('2 devices', 2, '<div>2</div>')
    """

    table: T
    """The content as a value."""
    forms: ClassVar[tuple[Callable[[Any], str], Callable[[Any], str]]]
    """The functions that make the text and the HTML of a value, in a subclass."""

    def __new__(cls, table: T) -> Shown[T]:
        """Make the text of a value."""
        shown = super().__new__(cls, cls.forms[0](table))
        shown.table = table
        return shown

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.table,)

    def _repr_html_(self) -> str:
        """Return the form that Jupyter shows."""
        return self.forms[1](self.table)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the lines without quotes, as IPython asks for it in a terminal."""
        del cycle
        printer.text(str(self))
