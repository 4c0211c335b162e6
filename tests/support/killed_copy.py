"""`python -m tests.support.killed_copy SOURCE DESTINATION`: a copy that ends itself as kill -9 does, between users."""

import os
import signal
import sys

from aftermind import Settings
from aftermind.api.copy_store import copy_store

KILLED_AFTER = 2  # partitions

if __name__ == "__main__":
    for copied in copy_store(sys.argv[1], sys.argv[2], settings=Settings()):
        if copied.number == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
