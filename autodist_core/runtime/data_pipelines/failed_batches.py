"""The error of a step whose data a machine could not make, or made otherwise, in words: which machine, why, what to do.

In: TensorFlow's error, and the machines that make the batch. Out: an error whose message begins with the address of the
machine. TensorFlow names the job and the tasks through which an error came, and the nodes of the session's graph::

    From /job:run/replica:0/task:0:
    assertion failed: [number 25 is broken]
         [[{{node Assert/AssertGuard/Assert}}]]
         [[function1/data/replica1/batch/IteratorGetNext]]

The task may only have passed the error on. The node of the session's graph is one of `autodist_core.kernel.drawn`, and
has the number of the replica for whose machine it ran.
"""

import re
from typing import Any

import tensorflow as tf

from autodist_core.kernel import Placement
from autodist_core.resource_spec import DeviceSpec
from autodist_core.runtime.failed_replicas import UNCHANGED

_NODE = re.compile(r"\[\[(?:\{\{node )?\w+/data/replica([0-9]+)/(batch/|Assert)")
_FROM = re.compile(r"From /job:\w+/replica:0/task:[0-9]+:\s*")
_BEHIND = re.compile(r"\n\s*(\[\[|Additional GRPC error|Recent warning and error logs|\([0-9]+\) [A-Z_]+:)")
"""What follows the words of an error."""
_SEVERAL = re.compile(r"^\s*[0-9]+ root error\(s\) found\.\s*\([0-9]+\) [A-Z_]+:\s+")
"""What stands before the words of the first of several errors."""
_INSTEAD = "AUTODIST_KEPT_BYTES=0 feeds each batch from your program instead."


def of_data(message: str) -> bool:
    """Whether an error came from the data of a machine, by TensorFlow's message.

    >>> of_data("no\\n\\t [[{{node function1/data/replica1/Assert}}]]"), of_data("no\\n\\t [[{{node function1/sum}}]]")
    (True, False)
    """
    return _NODE.search(message) is not None


def in_words(error: Any, placement: Placement, first: str = "") -> Any:
    """The error of a step in words. It came from the data of a machine (`of_data`).

    `first` is the host with whose batch the others compare theirs; empty if they compare it with the user's process.

    >>> from autodist_core.kernel import Tasks, inference
    >>> placement = inference(("10.0.0.1:GPU:0", "10.0.0.2:GPU:0"), Tasks("run", ("10.0.0.1", "10.0.0.2")))
    >>> text = "From /job:run/replica:0/task:0:\\n{}\\n\\t [[{{{{node f1/data/replica1/{}}}}}]]"
    >>> broken = text.format("assertion failed: [number 25 is broken]", "batch/IteratorGetNext")
    >>> print(in_words(tf.errors.InvalidArgumentError(None, None, broken), placement))
    10.0.0.2: the data pipeline of this machine raised an error: assertion failed: [number 25 is broken]
    Each machine runs your dataset itself: its functions and files must work there. AUTODIST_KEPT_BYTES=0 feeds each ...
    The step changed nothing: what was trained before it is kept.
    >>> other = tf.errors.InvalidArgumentError(None, None, text.format("assertion failed: [...]", "Assert"))
    >>> print(str(in_words(other, placement)).partition(":")[2].partition(":")[0])
     the data pipeline of this machine made another batch than your program
    """
    found = _NODE.findall(str(error))
    first_part = found[0][1]
    names = [placement.replicas[int(number)].name for number, part in found if part == first_part]
    addresses = list(dict.fromkeys(map(_address, names)))
    machines = "this machine" if len(addresses) == 1 else "these machines"
    where = ", ".join(addresses)
    kind = type(error)
    if first_part == "Assert":
        compared = [_address(replica.name) for replica in placement.replicas if replica.host == first]
        other = f"that of {compared[0]}" if compared else "your program"
        said = (
            f"{where}: the data pipeline of {machines} made another batch than {other}: the first or the last row "
            "differs."
        )
        remedy = (
            "Are the files the same on all machines, and do the dataset's functions give the same results each time?"
        )
    elif isinstance(error, tf.errors.OutOfRangeError):
        # Keras takes this class for the end of the data.
        kind = tf.errors.InvalidArgumentError
        said = f"{where}: the data pipeline of {machines} ended before the data of the other machines."
        remedy = "Are the files the same on all machines?"
    else:
        said = f"{where}: the data pipeline of {machines} raised an error: {why(str(error))}"
        remedy = "Each machine runs your dataset itself: its functions and files must work there."
    lines = [said, f"{remedy} {_INSTEAD}", *getattr(error, "__notes__", ()), UNCHANGED]
    return kind(error.node_def, error.op, "\n".join(lines))


def why(message: str) -> str:
    """What went wrong, in the words of the operation that failed: TensorFlow's message without jobs, tasks and nodes.

    >>> why("2 root error(s) found.\\n  (0) NOT_FOUND: /x; No such file\\n\\t [[{{node R}}]]\\n  (1) NOT_FOUND: ...")
    '/x; No such file'
    """
    text = _SEVERAL.sub("", _FROM.split(message, maxsplit=1)[-1])
    return _BEHIND.split(text, maxsplit=1)[0].strip()


def in_one_line(error: Exception) -> str:
    """What went wrong, in one line. It stands behind where the operation was made.

    >>> in_one_line(ValueError("Graph execution error:\\n\\nNode: 'R'\\n/x; No such file\\n\\t [[{{node R}}]]"))
    '/x; No such file'
    """
    _, made, text = str(error).rpartition("\nNode: ")
    said = why(text.partition("\n")[2] if made else text).partition("\n")[0]
    return said.rpartition("}} ")[2].rstrip(".:")[:300] or type(error).__name__


def _address(name: str) -> str:
    return DeviceSpec.parse(name).address
