"""The error of a step that failed while it ran, in words: whose operation failed, where, and what became of the step.

In: TensorFlow's error, and what a front knows of the captured step. Out: an error of the same class. TensorFlow repeats
its message for each part of the graph that ended with the step, and names the node of the session's graph::

    in layer 'table': indices[1,2] = 40 is not in [0, 9)
    The operation is GatherV2 (model/table/GatherV2), made at File "train.py", line 12, in call: self.table(ids)
    This happened on localhost:CPU:1, during training step 2, with examples 2 to 3 of the batch.
    The step changed nothing: what was trained before it is kept.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from autodist_core.capture.source_lines import SourceLines
from autodist_core.runtime.failed_replicas import UNCHANGED
from autodist_core.training.training import Training

_FAILED = re.compile(
    r"(?:^|\n\s*\(\d+\) [A-Z_]+: )(?P<why>(?:(?!\n\s*\(\d+\) ).)*?)\s*\[\["
    r"(?:\{\{function_node (?P<function>[^}]+)\}\})?\{\{node (?P<node>[^}]+)\}\}\]\]", re.DOTALL,
)  # fmt: skip
_NO_TRACE = "<stack traces unavailable>\n"
"""How the lines end that TensorFlow puts before the error of an operation in a nested function."""
_OF_SESSION = re.compile(r"^(\w+/replica|local)\d+/")
_SHARED = re.compile(r"(own|each)_[0-9a-f]+$")
"""The name of a function that machines or replicas call. In it, nodes of a replica's compute begin with `local0/`."""


def raise_in_words(
    error: Any, lines: SourceLines, owner: Callable[[str], str], training: Training | None = None,
    notes: Iterable[Any] = (),
) -> NoReturn:
    """Raise the error of a failed step in words; the same error if it names no operation of the captured step.

    `owner` says whose an operation is, by its name. Replicas of `training` that do not wait for each other may have
    changed something before. `notes` are the plan's; the error has those on its operation.

    >>> import tensorflow as tf
    >>> text = "2 is not in [0, 2)\\n\\t [[{{node function1/replica0/table/Gather}}]]"
    >>> raw = tf.errors.InvalidArgumentError(None, None, text)
    >>> raise_in_words(raw, SourceLines(), lambda name: f"layer {name.split('/')[0]!r}")
    Traceback (most recent call last):
    tensorflow.python.framework.errors_impl.InvalidArgumentError: in layer 'table': 2 is not in [0, 2)
    The operation is table/Gather
    The step changed nothing: what was trained before it is kept.

    Of a function that several machines call, TensorFlow names the function:

    >>> text = "2 is not in [0, 2)\\n\\t [[{{function_node own_1f}}{{node local0/table/Gather}}]]"
    >>> raw = tf.errors.InvalidArgumentError(None, None, text)
    >>> raise_in_words(raw, SourceLines(), lambda name: f"layer {name.split('/')[0]!r}")
    Traceback (most recent call last):
    tensorflow.python.framework.errors_impl.InvalidArgumentError: in layer 'table': 2 is not in [0, 2)
    The operation is table/Gather
    The step changed nothing: what was trained before it is kept.
    """
    preamble, _, text = str(error).rpartition(_NO_TRACE)
    found = _FAILED.search(text)
    inner = found is not None and not _OF_SESSION.match(found["node"]) and (
        bool(preamble) or (bool(found["function"]) and not _SHARED.match(found["function"]))
    )
    if found is None or not (inner or _OF_SESSION.match(found["node"])):
        raise error
    name = _OF_SESSION.sub("", found["node"])
    state = None if training is None else training.state
    waits = state is None or state.session.placement.loose is None
    said = [
        f"in {owner(name)}: {found['why'].strip()}",
        f"The operation is {lines.of(name, inner)}",
        *(f"The plan says: {note}" for note in notes if name in getattr(note, "nodes", ())),
        *getattr(error, "__notes__", ()),
        *((UNCHANGED,) if waits else ()),
    ]
    raise type(error)(error.node_def, error.op, "\n".join(said)) from error
