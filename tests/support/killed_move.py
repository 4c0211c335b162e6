"""`python -m tests.support.killed_move NAMESPACE TO STEP`: a move that ends itself as kill -9 does, after a step.

A step is a method of the source, the target or Redis, and how often it is called before. Without a step the move ends.
"""

import asyncio
import os
import signal
import sys
from functools import wraps
from typing import Any

from aftermind import Memory
from aftermind.api import tenants
from aftermind.db.tenant_moves import TenantRows
from aftermind.wire.pending import Pending

# In their order. Writes pause from the third to the last but two.
STEPS = (
    *("TenantRows.copy:1", "TenantRows.pause_jobs:2", "TenantRows.stop_writes:1", "TenantRows.watermark:1"),
    *("TenantRows.set_state:leaving", "TenantRows.set_state:arrived", "Pending.serve_here:1", "Pending.switch:1"),
    *("TenantRows.leave:1", "TenantRows.serve:1"),
)


def kill_after(step: str) -> None:
    """Let this process end after a call of the method: the n-th one, or that with such an argument."""
    owner, _, name = step.partition(".")
    name, _, which = name.partition(":")
    cls: Any = {"TenantRows": TenantRows, "Pending": Pending}[owner]  # Any: either, by its methods
    method, calls = getattr(cls, name), 0

    @wraps(method)
    async def call(self: Any, *args: Any, **options: Any) -> Any:  # Any: as the method has it
        nonlocal calls
        result = await method(self, *args, **options)
        calls += 1
        if which == str(calls) or which in args:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(cls, name, call)


async def _move(namespace: str, to: str) -> None:
    memory = Memory()
    try:
        await memory.tenants.move(namespace, to=to)
    finally:
        await memory.close()


if __name__ == "__main__":
    tenants.PAUSE_SEEN_SECONDS = 1.2
    if len(sys.argv) > 3:
        kill_after(sys.argv[3])
    asyncio.run(_move(sys.argv[1], sys.argv[2]))
