"""What is said of a training before and beside it: the plan's notes, and the comparison with one device.

In: a captured step and a compiled strategy, functions that train, or measured times. Out: a `Plan`, a table of
differences, or a report on where the time of a step goes.
"""

from autodist_core.reports.comparison import Explanation, compare, require_steps, restore, values_of
from autodist_core.reports.reasons import Reason
from autodist_core.reports.rounding import coarsest_type
from autodist_core.reports.step_plan import (
    can_draw_as_one,
    drawing_notes,
    drawn_anew,
    explicit_draws,
    inexact_notes,
    planned,
    say_inexact,
)
from autodist_core.reports.time_report import TimeReport, time_report
from autodist_core.reports.timeline import timeline

__all__ = [
    "Explanation", "Reason", "TimeReport", "can_draw_as_one", "coarsest_type", "compare", "drawing_notes",
    "drawn_anew", "explicit_draws", "inexact_notes", "planned", "require_steps", "restore", "say_inexact",
    "time_report", "timeline", "values_of",
]
