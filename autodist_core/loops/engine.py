"""What all functions of one `AutoDist` share: a training, the variables, and one call at a time.

In: settings. Out: blocks in which a function runs. An error in a block brings the state back to the variables first, so
nothing that was trained is lost.

>>> from autodist_core.resource_spec import ResourceSpec
>>> engine = Engine(Settings(ResourceSpec.local(cpus=2), "PS", fused_kernels=False))
>>> with engine.running("train_step"):
...     with engine.running("evaluate"):
...         pass
Traceback (most recent call last):
autodist_core.errors.SessionError: evaluate is called while train_step of the same AutoDist runs. ...
>>> engine.close()
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from autodist_core.errors import CaptureError, NotYetError, SessionError
from autodist_core.interrupts import ignore_repeated_interrupts
from autodist_core.kernel import mixed_results, with_alike_updates
from autodist_core.log import log
from autodist_core.loops.variables import Variables
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.training import Entry, Settings, Training, TrainingState

_MANY_TRACES = 10


class Engine:
    """The training and the variables of one `AutoDist`. The module has an example."""

    def __init__(self, settings: Settings) -> None:
        self.training = Training(settings)
        self.variables = Variables()
        self._lock = threading.Lock()
        self._traces: Counter[Any] = Counter()
        self._name = ""
        """The function that runs."""

    @contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Let nothing else run inside this block; a SessionError says if something runs already."""
        if not self._lock.acquire(blocking=False):
            raise SessionError(
                f"{name} is called while {self._name} of the same AutoDist runs. One call at a time: call it after the "
                f"other one has returned; a function that is part of {self._name} needs no mark of its own."
            )
        self._name = name
        try:
            yield
        finally:
            self._lock.release()

    def refuse_within_trace(self, name: str) -> NoReturn:
        """Refuse a call of a marked function by a function that is traced, a marked one or another one."""
        with self.claimed(name):
            raise CaptureError(
                f"{name} is called while a tf.function is traced, and would run once, at the trace. Take the "
                f"@tf.function of what calls {name} away: {name} itself runs as a graph."
            )

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run a call inside this block."""
        with self.claimed(name), ignore_repeated_interrupts():
            if self.training.has_ended:
                self.training.pull()
                self.training.close_session()
            if self.training.state is not None:
                self.training.state.use_here()
            try:
                yield
            except BaseException:
                try:
                    self.training.pull()
                finally:
                    if self.training.is_lost:
                        self.training.close()
                raise

    def admit(self, state: TrainingState, item: GraphItem) -> GraphItem:
        """Let the owners of variables that other functions of this engine train make the writes of them.

        All replicas must write the same. Return the step with these writes as an update, or the step itself if it has
        no such write.
        """
        placement = state.session.placement
        step = StepIndex.of(item)
        written = sorted((step.written_by_compute - step.written_by_update).intersection(placement.updated))
        if not written:
            return item
        alike = with_alike_updates(step, written)
        if alike is None:
            raise CaptureError(
                f"{self._name} writes {' and '.join(map(repr, written[:3]))}, which another marked function updates, "
                "and what it writes depends on the batch, of which each replica has a part. Such a variable may be "
                "assigned what is made of gradients, or of variables, whole arguments and constants. Return the value, "
                "which is then the whole batch's, and assign it after the call."
            )
        if mixed_results(step, step.written_by_compute & StepIndex.of(alike).written_by_update):
            raise CaptureError(
                f"{self._name} assigns {' and '.join(map(repr, written[:3]))}, which another marked function updates, "
                "and returns what it computes of the assigned values and of the batch. Assign them in a marked "
                "function of its own."
            )
        if placement.loose is not None:
            raise NotYetError(
                f"{self._name} writes {' and '.join(map(repr, written[:3]))}, which another marked function updates. "
                "With staleness or sync=False replicas are at different steps then. Assign it in Python between the "
                "calls, or use a strategy whose replicas stay in step."
            )
        return alike

    def note_trace(self, name: str, function: Any) -> None:
        """Note that a function was traced and is kept. A warning names a function that has many traces."""
        code = getattr(function, "__code__", None)
        self._traces[code or name] += 1
        if self._traces[code or name] == _MANY_TRACES:
            log.warning(
                "%s%s was traced %d times; every trace takes time and memory. A function is traced anew for another "
                "Python number or object that it takes or, in run(), refers to, and where it is marked anew: mark it "
                "once, and give numbers that change as tensors, among the arguments.",
                name, f" ({code.co_filename}:{code.co_firstlineno})" if code else "", _MANY_TRACES,
            )

    def close(self) -> None:
        """Bring the state back to the variables, and free the devices and machines."""
        with ignore_repeated_interrupts():
            try:
                self.training.pull()
            finally:
                self.training.close()

    def show(self, entries: Iterable[Entry]) -> None:
        """Give these variables their current values: somebody may read or write them, and does not report it."""
        assert self.training.state is not None
        for entry in entries:
            self.training.state.looked_at(entry)
