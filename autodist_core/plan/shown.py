"""A text that a notebook shows as a table: the plan, and the report on where a step's time goes.

In: a value with the content. Out: a string that keeps the value. A class says how its value becomes text and HTML.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shown(str, Generic[T]):
    """A string that a notebook shows as an HTML table.

    >>> class Count(Shown[int]):
    ...     @staticmethod
    ...     def text_of(table): return f"{table} devices"
    ...     @staticmethod
    ...     def html_of(table): return f"<div>{table}</div>"
    >>> count = Count(2)
    >>> count, count.table, count._repr_html_()
    ('2 devices', 2, '<div>2</div>')
    """

    table: T
    """The content as a value."""

    def __new__(cls, table: T) -> Shown[T]:
        """Make the text of a value."""
        shown = super().__new__(cls, cls.text_of(table))
        shown.table = table
        return shown

    @staticmethod
    def text_of(table: Any, /) -> str:
        """The text of a value, in a subclass.

        >>> from autodist_core.plan import Plan, PlanTable
        >>> Plan.text_of(PlanTable("3f9c21", ("localhost:CPU:0",), ())).splitlines()[0]
        'strategy 3f9c21 @ 1 replica'
        """
        raise NotImplementedError

    @staticmethod
    def html_of(table: Any, /) -> str:
        """The HTML of a value, in a subclass.

        >>> from autodist_core.plan import Plan, PlanTable
        >>> Plan.html_of(PlanTable("3f9c21", ("localhost:CPU:0",), ())).startswith("<div")
        True
        """
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
