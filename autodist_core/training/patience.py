"""Let a thread that does not run the steps wait for the end of the current one, for a limited time.

In: the lock of the session, and what is to be done between two steps. Out: it is done, or the thread goes on without.

>>> patience = Patience(threading.RLock())
>>> patience.between_steps(lambda: print("read") is None, failed=print)
read
"""

import threading
import time
from collections.abc import Callable

_SECONDS, _PAUSE = 1.0, 0.002
"""The seconds for which a thread waits, and the seconds between two of its attempts."""


class Patience:
    """What the threads of one state know of the current step."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.is_over = False
        """Whether a thread has waited too long for the current step. The others wait no more."""

    def between_steps(self, attempt: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        """Make attempts until one returns True. An error of one is told: the thread that looks did not cause it."""
        # Threads of TensorFlow run Python as a part of a step or of the data. These threads cannot wait for a step.
        waits = not isinstance(threading.current_thread(), threading._DummyThread)
        until = time.monotonic() + _SECONDS
        while waits and self._lock.acquire(timeout=_SECONDS):
            try:
                if attempt():
                    return
            except Exception as failure:
                failed(failure)
                return
            finally:
                self._lock.release()
            if self.is_over or time.monotonic() > until:
                self.is_over = True
                return
            time.sleep(_PAUSE)
