"""Operators' pauses as a worker process sees them: read once a second while it claims."""

import asyncio
import time
from dataclasses import dataclass, field

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.ledger.job_admin_protocol import JobOperations
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobKind
from aftermind.types.job_admin import JobPause

log = get_logger(__name__)

READ_SECONDS = 1.0  # an operator's pause is noticed within it; one query of a table with a few rows


@dataclass(slots=True)
class JobPauses:
    """The pauses of one store. While it does not answer, the last ones read are in force; before any was read, all jobs
    are paused.
    """

    database: Database
    operations: JobOperations
    _pauses: list[JobPause] | None = None
    _read_at: float = float("-inf")
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def is_paused(self, kind: JobKind) -> bool:
        """Whether no namespace's jobs of this kind may be claimed."""
        pauses = await self._of(kind)
        return pauses is None or any(each.namespace is None for each in pauses)

    async def namespaces(self, kind: JobKind) -> list[str]:
        """Namespaces whose jobs of this kind may not be claimed."""
        return [each.namespace for each in await self._of(kind) or () if each.namespace is not None]

    async def _of(self, kind: JobKind) -> list[JobPause] | None:
        # Loops of several kinds begin together: none may claim before the first has read. Later the others do not wait.
        if self._pauses is None or not self._reading.locked():
            async with self._reading:
                if time.monotonic() - self._read_at >= READ_SECONDS:
                    await self._read()
        return None if self._pauses is None else [each for each in self._pauses if each.kind in (None, kind)]

    async def _read(self) -> None:
        try:
            async with self.database.transaction(read_only=True) as tx:
                self._pauses = await self.operations.pauses(tx)
        except errors.Unavailable as exc:
            log.warning("pauses not read", extra={"error": str(exc)})
        self._read_at = time.monotonic()
