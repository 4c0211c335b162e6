"""Events that are published live before their row is committed: a listener gets each once."""

from collections import OrderedDict

from aftermind.events.types import MemoryEvent

MAX_REMEMBERED_EVENTS = 1_000  # of one listener: more jobs of one owner than run concurrently


class EarlyEvents:
    """What one listener got live and will get again with its cursor."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, event: MemoryEvent) -> bool:
        """Whether the event is new; one without a cursor is remembered until it arrives with one."""
        if event.id in self._ids:
            if event.cursor is not None:
                del self._ids[event.id]
            return False
        if event.cursor is None:
            self._ids[event.id] = None
            if len(self._ids) > MAX_REMEMBERED_EVENTS:
                self._ids.popitem(last=False)
        return True
