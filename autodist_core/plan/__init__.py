"""The plan: a compiled strategy as a table for people, before anything runs.

`table` says what stands in it, as values. `text` and `html` are its two forms, and a `Plan` is both at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autodist_core.plan.html import html_of
from autodist_core.plan.table import PlanTable, bytes_per_step, notes, plan_table
from autodist_core.plan.text import text_of
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.compiled import CompiledStrategy

__all__ = ["Plan", "PlanTable", "bytes_per_step", "notes", "plan_table", "table"]


class Plan(str):
    """A plan: text everywhere, and a table of HTML where a notebook shows it.

    It is a string, since plans were strings: code that splits, searches, compares, logs or writes one goes on working.

    >>> plan = Plan(PlanTable("3f9c21", ("localhost:CPU:0",), ()))
    >>> plan.splitlines()[0], isinstance(plan, str)
    ('strategy 3f9c21 @ 1 replica', True)
    >>> plan._repr_html_().startswith("<div")
    True
    """

    table: PlanTable
    """What it says, as a value."""

    def __new__(cls, table: PlanTable) -> Plan:
        """The plan of a table."""
        plan = super().__new__(cls, text_of(table))
        plan.table = table
        return plan

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.table,)

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        return html_of(self.table)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows in a terminal: the lines, not the string's quotes."""
        del cycle
        printer.text(str(self))


def table(
    compiled: CompiledStrategy, graph_item: GraphItem | None = None, shared: bool = False,
    notes_besides: Iterable[str] = (),
) -> Plan:
    """The plan of ``compiled``; the arguments are those of ``plan_table``.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import Parallax
    >>> table_variable = Variable("embed/table", (50, 4), "float32", is_sparse=True)
    >>> item = GraphItem((Variable("dense/kernel", (7, 128), "float32"), table_variable))
    >>> spec = ResourceSpec.local(cpus=2)
    >>> strategy = Parallax().build(item, spec)
    >>> print(table(StrategyCompiler(item, spec).compile(strategy)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : f32[7,128]        all_reduce(group=0)  3.5 KiB  7.0 KiB/step
      embed/table  : f32[50,4] sparse  ps(localhost:CPU:0)    800 B     rows/step
      total: 2 variables, 4.3 KiB; 7.0 KiB travel between devices per step, and the rows of 1 sparse variable
    """
    return Plan(plan_table(compiled, graph_item, shared, notes_besides))
