"""Start events of turns are also published live, before their row is committed: a listener gets each once."""

from collections import OrderedDict

from aftermind.events.types import MemoryEvent, MemoryUpdateStarted

MAX_REMEMBERED_EVENTS = 1_000  # of one listener: more jobs of one owner than run concurrently


class EarlyEvents:
    """Start events that one listener got. Each may come twice: live, and with its cursor, in either order."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, event: MemoryEvent) -> bool:
        """Whether the listener does not have the event yet."""
        if not isinstance(event, MemoryUpdateStarted):
            return True
        if event.id in self._ids:
            return False
        self._ids[event.id] = None
        if len(self._ids) > MAX_REMEMBERED_EVENTS:
            self._ids.popitem(last=False)
        return True
