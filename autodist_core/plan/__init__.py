"""The plan: a compiled strategy as a table for people, before anything runs.

It is the last step of planning. A CompiledStrategy comes in, and a `Plan` goes out. The module `table` computes the
content of the plan as values. The modules `text` and `html` make its two forms, and a `Plan` has both.
The module `memory` says what the memory of a device must
hold, and whether it fits. The module `headline` makes the line that a training says once, and counts the bytes that a
node sends, also for the report on where a step's time goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from autodist_core.plan.html import html_of
from autodist_core.plan.memory import DeviceMemory
from autodist_core.plan.table import INEXACT, UNDECIDED, PlanTable, bytes_per_step, notes, plan_table, state_memory
from autodist_core.plan.text import text_of

__all__ = [
    "INEXACT", "UNDECIDED", "DeviceMemory", "Plan", "PlanTable", "Shown", "bytes_per_step", "notes", "plan_table",
    "state_memory",
]  # fmt: skip

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
        printer.text(str(self))


class Plan(Shown[PlanTable]):
    """A plan. It is a string, and a notebook shows it as an HTML table.

    Because it is a string, code can split, search, compare, log and write a plan.

    >>> from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import Parallax
    >>> table_variable = Variable("embed/table", (50, 4), "float32", is_sparse=True)
    >>> item = GraphItem((Variable("dense/kernel", (7, 128), "float32"), table_variable))
    >>> spec = ResourceSpec.local(cpus=2)
    >>> plan = Plan(plan_table(StrategyCompiler(item, spec).compile(Parallax().build(item, spec))))
    >>> print(plan)
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : f32[7,128]        all_reduce(group=0)  3.5 KiB  7.0 KiB/step
      embed/table  : f32[50,4] sparse  ps(localhost:CPU:0)    800 B     rows/step
      total: 2 variables, 4.3 KiB; 7.0 KiB travel between devices per step, and the rows of 1 sparse variable
    >>> isinstance(plan, str), plan._repr_html_().startswith("<div")
    (True, True)
    """

    forms = text_of, html_of
