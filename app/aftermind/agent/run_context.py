"""The user of the running code, for tools without arguments about it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from aftermind.types import Json, RecallBlock, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that the current task belongs to.

    `memory_context` is the block that was recalled for it, None where memory was off or failed.
    """

    scope: Scope
    run_id: str
    memory_context: RecallBlock | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def user_id(self) -> str | None:
        """Whose memory it is; None is the anonymous bucket."""
        return self.scope.user_id

    @property
    def session_id(self) -> str | None:
        """The session of the run, if it has one."""
        return self.scope.session_id


_current: ContextVar[RunContext | None] = ContextVar("aftermind_run", default=None)


def get_run_context() -> RunContext | None:
    """The run that the calling task belongs to, or None outside of one. Cheap; safe in threads started by a run."""
    return _current.get()


@contextmanager
def running(context: RunContext) -> Iterator[RunContext]:
    """Make `context` the current one for the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
