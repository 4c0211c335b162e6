"""Hand-overs that need a task: each is answered once and within the budget, however long its cleaning up takes."""

import asyncio
from collections.abc import Callable, Coroutine

from aftermind import errors
from aftermind.outbox.group_commit import Landing
from aftermind.wire.pending import Accepted

Work = Coroutine[None, None, list[Accepted]]


class Flights:
    """The running tasks. `late` creates the error of a timed-out one, from the reason."""

    def __init__(self, budget_seconds: float, late: Callable[[str], errors.Unavailable]) -> None:
        self.budget_seconds, self._late = budget_seconds, late
        self._tasks: set[asyncio.Task[list[Accepted]]] = set()  # a loop holds its tasks by weak references only

    def start(self, work: Work, landing: Landing) -> None:
        """Run it on the running loop, and call `landing` once."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._tasks.add(task)
        has_landed = False

        def land(outcome: list[Accepted] | errors.AftermindError) -> None:
            nonlocal has_landed
            if not has_landed:
                has_landed = True
                timer.cancel()
                landing(outcome)

        def expired() -> None:
            task.cancel()  # rollback over a lost connection takes seconds; the caller does not wait for it
            land(self._late(f"no answer within {self.budget_seconds:g} s"))

        def ended(task: asyncio.Task[list[Accepted]]) -> None:
            self._tasks.discard(task)
            land(self._outcome(task))

        timer = loop.call_later(self.budget_seconds, expired)
        task.add_done_callback(ended)

    def _outcome(self, task: asyncio.Task[list[Accepted]]) -> list[Accepted] | errors.AftermindError:
        if task.cancelled():
            return self._late("the event loop ends")
        error = task.exception()
        return task.result() if error is None else named(error)


def named(error: BaseException) -> errors.AftermindError:
    """The error as one of ours."""
    return error if isinstance(error, errors.AftermindError) else errors.Bug(f"{type(error).__name__}: {error}")
