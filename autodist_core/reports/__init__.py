"""What is said of a training before and beside it: the plan's notes, and the comparison with one device.

In: a captured step and a compiled strategy, functions that train, or measured times. Out: a `Plan`, a table of
differences, or a report on where the time of a step goes.
"""
