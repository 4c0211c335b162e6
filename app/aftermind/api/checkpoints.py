"""`memory.checkpoints`: paused runs of an agent that wait for a person, each resumed exactly once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import orjson

from aftermind import errors
from aftermind.api import conversation_history
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import StoredItem
from aftermind.types import Json, Scope
from aftermind.types.items import CHECKPOINTS, internal_path, to_name

STATE_BYTES = 8_388_608
RUN_ID_BYTES = 128
DEFAULT_LIFE = timedelta(days=7)
LONGEST_LIFE = timedelta(days=3_650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a paused run. `resumed_at` is when it was resumed; None: it still waits."""

    scope: Scope
    run_id: str
    state: Mapping[str, Json]
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    resumed_at: datetime | None = None


class Checkpoints:
    """The checkpoints of a user, by run id and session. Every call raises `InvalidScope`, `InvalidItem` and
    `StoreUnavailable`.

    They are durable when `save` returns, and `forget` of the user or of the session deletes them.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def save(
        self,
        run_id: str,
        state: Mapping[str, Json],
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        expires_in: timedelta | None = DEFAULT_LIFE,
    ) -> Checkpoint:
        """Store the state of a paused run: a JSON object of up to 8 MiB. It takes the place of an earlier one.

        A run that was resumed can be resumed once more afterwards. `expires_in` None: it does not expire.
        """
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        name = _name(scope, run_id)
        if not isinstance(state, Mapping):
            raise errors.InvalidItem("state", state, "it is a JSON object.")
        if expires_in is not None and not timedelta() < expires_in <= LONGEST_LIFE:
            raise errors.InvalidItem("expires_in", expires_in, "it is longer than nothing and at most 3,650 days.")
        content = _dump(scope, run_id, state, resumed_at=None)

        async def write(tx: Transaction) -> Checkpoint:
            await self._begin(tx, scope, name)
            given = await self._put(tx, scope, name, content, expires_in)
            stored = await self._read(tx, scope, name)
            return _load(scope, stored or given)  # one that expires within a millisecond is not there any more

        return await self._parts.effects.commit(scope.owner, write)

    async def get(
        self,
        run_id: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
    ) -> Checkpoint | None:
        """The checkpoint of a run, resumed or not; None if there is none, or it has expired."""
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id)
        name = _name(scope, run_id)
        found = await conversation_history.read(self._parts, scope.owner, lambda tx: self._read(tx, scope, name))
        return None if found is None else _load(scope, found)

    async def list(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        resumed: bool = False,
        limit: int = 100,
    ) -> list[Checkpoint]:
        """Checkpoints that wait, or with `resumed` those that were resumed; of a session if given; newest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise errors.InvalidItem("limit", limit, "it is a whole number above 0.")
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id)
        path = internal_path(CHECKPOINTS) if session_id is None else internal_path(CHECKPOINTS, scope)
        found = await conversation_history.read(
            self._parts, scope.owner, lambda tx: self._parts.store.items_under(tx, scope.owner, path)
        )
        loaded = (_load(scope, each) for each in found)
        return [each for each in loaded if (each.resumed_at is not None) is resumed][:limit]

    async def resume(
        self,
        run_id: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
    ) -> Checkpoint:
        """Take a paused run over: of any number of callers, in any process, one gets it.

        The others get `CheckpointResumed`, also after a restart. The checkpoint is kept until it expires; if the run
        is lost, `save` its state again. Raises `NotThere` if there is none.
        """
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id)
        name = _name(scope, run_id)

        async def write(tx: Transaction) -> Checkpoint:
            await self._begin(tx, scope, name)
            found = await self._read(tx, scope, name)
            if found is None:
                raise errors.NotThere("checkpoint", run_id)
            known = _load(scope, found)
            if known.resumed_at is not None:
                raise errors.CheckpointResumed(run_id, known.resumed_at)
            now = await self._parts.store.now(tx)
            content = _dump(known.scope, run_id, known.state, resumed_at=now)
            await self._put(tx, scope, name, content, found.ttl)
            return replace(known, resumed_at=now)

        return await self._parts.effects.commit(scope.owner, write)

    async def delete(
        self,
        run_id: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
    ) -> bool:
        """Delete a checkpoint; whether there was one."""
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id)
        name = _name(scope, run_id)
        return bool(
            await self._parts.effects.commit(
                scope.owner, lambda tx: self._parts.store.delete_items(tx, scope.owner, [name])
            )
        )

    async def _begin(self, tx: Transaction, scope: Scope, name: str) -> None:
        await self._parts.store.tombstones(tx, [scope.owner])  # holds a forget of this user off until the end
        await self._parts.store.hold(tx, scope.owner, name)

    async def _read(self, tx: Transaction, scope: Scope, name: str) -> StoredItem | None:
        found = await self._parts.store.items(tx, scope.owner, [name])
        return found[0] if found else None

    async def _put(self, tx: Transaction, scope: Scope, name: str, content: str, ttl: timedelta | None) -> StoredItem:
        now = datetime.now(UTC)
        expires = None if ttl is None else now + ttl
        item = StoredItem(name=name, content=content, ttl=ttl, created_at=now, updated_at=now, expires_at=expires)
        await self._parts.store.put_items(tx, scope.owner, [item])
        return item


def _dump(scope: Scope, run_id: str, state: Mapping[str, Json], *, resumed_at: datetime | None) -> str:
    value = {
        "run_id": run_id,
        "session_id": scope.session_id,
        "agent_id": scope.agent_id,
        "resumed_at": resumed_at,
        "state": dict(state),
    }
    try:
        content = orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError) as exc:
        raise errors.InvalidItem("state", state, f"it must be JSON: {exc}.") from exc
    if len(content) > STATE_BYTES:
        raise errors.InvalidItem("state", f"{len(content)} bytes", f"it has at most {STATE_BYTES:,} bytes as JSON.")
    if b"\\u0000" in content:
        raise errors.InvalidItem("state", "a NUL character", "text in it cannot hold NUL.")
    return content.decode()


def _load(owner: Scope, stored: StoredItem) -> Checkpoint:
    value = orjson.loads(stored.content)
    resumed_at = value["resumed_at"]
    return Checkpoint(
        scope=replace(owner, session_id=value["session_id"], agent_id=value["agent_id"]),
        run_id=value["run_id"],
        state=value["state"],
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        expires_at=stored.expires_at,
        resumed_at=None if resumed_at is None else datetime.fromisoformat(resumed_at),
    )


def _name(scope: Scope, run_id: object) -> str:
    if not isinstance(run_id, str) or not run_id or "\x00" in run_id or not run_id.isprintable():
        raise errors.InvalidItem("run_id", run_id, "it is printable text, not empty.")
    if len(run_id.encode()) > RUN_ID_BYTES:
        raise errors.InvalidItem("run_id", run_id, f"it has at most {RUN_ID_BYTES} UTF-8 bytes.")
    return to_name(internal_path(CHECKPOINTS, scope), run_id)
