"""`time.sleep` for processes with a skewed clock: waits for an event.

libfaketime 0.9.10 passes a wrong deadline to clock_nanosleep, which is what `time.sleep` calls: EINVAL.
"""

import threading
import time


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


time.sleep = _sleep
