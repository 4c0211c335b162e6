"""`memory.audit`: the audit trail of operators' actions, and its verification."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.db.audit.chain import verify_entries
from aftermind.db.database_protocol import Database, Transaction
from aftermind.types import Json, Scope
from aftermind.types.audit import Action, AuditEntry, AuditFault, AuditReport
from aftermind.types.whole_number import check_whole_number

if TYPE_CHECKING:  # it loads SQLAlchemy, which a store of one process does without
    from aftermind.db.audit.log import Ends, Trail

PAGE_ROWS = 5_000
TRIES = 5  # attempts to read a trail whose old end is pruned at the same time


class Audit:
    """The trail of each namespace. Every call raises `InvalidScope` and `StoreUnavailable`.

    Erasures, discards and replays are recorded with what they do. What shows another's memory to an operator (the
    command, screens) calls `record` first, and shows nothing where that raises.
    """

    def __init__(self, *, db: Database, work: Database, trail: "Trail", namespace: str, of_all: bool) -> None:
        self._db, self._work, self._trail, self._namespace, self._of_all = db, work, trail, namespace, of_all

    async def record(
        self,
        action: Action | str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        actor: str | None = None,
        detail: Mapping[str, Json] | None = None,
    ) -> AuditEntry:
        """Add an entry. `actor` acts (None: the user of this process); `detail` has ids and counts."""
        scope = Scope(namespace=self._namespace if namespace is None else namespace, user_id=user_id)
        try:
            kind = Action(action)
        except ValueError as exc:
            raise errors.InvalidQuery("action", action, f"one of {', '.join(Action)}.") from exc

        async with self._db.transaction(namespace=scope.namespace) as tx:
            entry = await self._trail.append(tx, scope.namespace, kind, user_id=user_id, actor=actor, detail=detail)
        await self._trail.anchor()
        return entry

    async def list(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        action: Action | str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """The newest `limit` entries of a namespace (of a user, of a kind), oldest first."""
        check_whole_number(limit)
        name = self._namespace if namespace is None else namespace
        kind = None if action is None else str(action)
        async with self._db.transaction(namespace=name, read_only=True) as tx:
            return await self._trail.newest(tx, name, user_id=user_id, action=kind, limit=limit)

    async def verify(self, *, namespace: str | None = None) -> Sequence[AuditReport]:
        """Check every entry of a namespace; without one, of every namespace that this process may see.

        Namespaces are those of the database and of the witnesses, so a trail that was deleted as a whole is reported
        too. Finds entries that were changed, removed, inserted or cut off at the end. An end that was cut off together
        with its head is found if a witness is left: the state folder of a host that acted, or Redis.
        """
        known = {each.name: await each.read_ends() for each in self._trail.witnesses}
        is_of_all = namespace is None and self._of_all
        if is_of_all:
            async with self._work.transaction(read_only=True) as tx:
                names = {*await self._trail.heads(tx), *(name for ends in known.values() for name in ends)}
            names = names or {self._namespace}
        else:
            names = {self._namespace if namespace is None else namespace}
        reports = []
        for name in sorted(names):
            try:
                reports.append(await self._verified(name, known))
            except errors.TenantMoved:
                if not is_of_all:
                    raise
                # the database that serves it now verifies it
        return reports

    async def _verified(self, namespace: str, known: "Mapping[str, Ends]") -> AuditReport:
        for _ in range(TRIES):
            async with self._db.transaction(namespace=namespace, read_only=True) as tx:
                head = await self._trail.head(tx, namespace)
                rows = await self._rows(tx, namespace, 0 if head is None else head.pruned_to)
                now = await self._trail.head(tx, namespace)
            if (head and head.pruned_to) == (now and now.pruned_to):
                break
        last = 0 if head is None else head.seq
        appended = 0 if now is None else now.seq  # entries between the two reads are new, not wrong
        rows = [row for row in rows if not last < row[0].seq <= appended]
        faults = verify_entries(self._trail.keys, namespace, head, rows)
        codes = {entry.seq: entry.mac for entry, _ in rows}
        ends = {name: found[namespace] for name, found in known.items() if found.get(namespace)}
        for name, reported in ends.items():
            furthest = max(reported)
            if furthest > max(last, appended):
                what = f"the newest entries were cut off: {name} has {furthest}, the database has {last}"
                faults.append(AuditFault(namespace=namespace, seq=None, what=what))
            faults += [
                AuditFault(namespace=namespace, seq=seq, what=f"it is not the one that {name} has")
                for seq, mac in sorted(reported.items())
                if seq in codes and codes[seq] != mac
            ]
        return AuditReport(
            namespace=namespace,
            entries=len(rows),
            first=rows[0][0].seq if rows else 0,
            last=last,
            witnesses=tuple(ends),
            faults=tuple(faults),
        )

    async def _rows(self, tx: Transaction, namespace: str, after: int) -> Sequence[tuple[AuditEntry, str]]:
        # From below what was pruned: an entry inserted there is found too.
        found: list[tuple[AuditEntry, str]] = []
        place = -1
        while page := await self._trail.entries(tx, namespace, after=place, limit=PAGE_ROWS):
            found += page
            place = page[-1][0].seq
        return [row for row in found if row[0].seq > after] + [row for row in found if row[0].seq <= after]
