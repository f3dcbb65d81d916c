"""What is said of a training before and beside it: the plan's notes, and the comparison with one device.

In: a captured step and a compiled strategy, or functions that train. Out: a `Plan`, or a table of differences.
"""

from autodist_core.reports.comparison import Explanation, compare, require_steps
from autodist_core.reports.rounding import coarsest_type
from autodist_core.reports.step_plan import drawing_notes, drawn_anew, inexact_notes, planned, say_inexact

__all__ = [
    "Explanation", "coarsest_type", "compare", "drawing_notes", "drawn_anew", "inexact_notes", "planned",
    "require_steps", "say_inexact",
]
