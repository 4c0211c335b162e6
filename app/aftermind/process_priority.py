"""A lower CPU priority for this process: among all processes of the machine, not only within its session."""

import os
import time
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
ATTEMPTS = 10
RETRY_SECONDS = 0.1  # the kernel lets unprivileged processes change one autogroup of the machine in this time


def lower_priority(nice: int) -> None:
    """Raise the nice value of this process to at least `nice` (0 to 19), and that of its session if it leads one.

    Linux divides the CPU among sessions first (autogroups; sched(7)), so the value of a process that is alone in its
    session has no effect without the session's. In a container with a CPU weight only the value of the process counts.
    """
    value = os.nice(max(0, nice - os.nice(0)))
    if os.getsid(0) != os.getpid():
        return  # the other processes of a terminal would have it too
    for _ in range(ATTEMPTS):
        try:
            AUTOGROUP.write_text(str(value))
        except BlockingIOError:
            time.sleep(RETRY_SECONDS)
        except OSError:  # another system, or a kernel without autogroups
            return
        else:
            return
