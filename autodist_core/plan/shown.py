"""A text that a notebook shows as a table: the plan, and the report on where a step's time goes.

In: a value with the content. Out: a string that keeps the value. A class says how its value becomes text and HTML:

>>> class Count(Shown[int]):
...     @staticmethod
...     def text_of(table): return f"{table} devices"
...     @staticmethod
...     def html_of(table): return f"<div>{table}</div>"
>>> count = Count(2)
>>> count, count.table, count._repr_html_()
('2 devices', 2, '<div>2</div>')
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shown(str, Generic[T]):
    """A string that a notebook shows as an HTML table. The module has an example."""

    table: T
    """The content as a value."""

    def __new__(cls, table: T) -> Shown[T]:
        """Make the text of a value."""
        shown = super().__new__(cls, cls.text_of(table))
        shown.table = table
        return shown

    @staticmethod
    def text_of(table: Any, /) -> str:
        """The text of a value, in a subclass."""
        raise NotImplementedError

    @staticmethod
    def html_of(table: Any, /) -> str:
        """The HTML of a value, in a subclass."""
        raise NotImplementedError

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.table,)

    def _repr_html_(self) -> str:
        """Return the form that Jupyter shows."""
        return self.html_of(self.table)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the lines without quotes, as IPython asks for it in a terminal."""
        del cycle
        printer.text(str(self))
