"""`memory.encryption`: content of a namespace sealed in the database, and keys that change, while it is used."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction
from aftermind.ranking.tokenizer import LanguageFor
from aftermind.types import Scope
from aftermind.types.audit import Action

if TYPE_CHECKING:  # they load SQLAlchemy, which a store of one process does without
    from aftermind.db.audit.log import Trail
    from aftermind.db.encryption.keyring import Vault

BATCH_ROWS = 200  # of one transaction: 20 ms, so that other writers do not wait long
# Until every process has loaded a new key (2 s), and its earlier operations have ended (twice a statement's deadline).
SPREAD_SECONDS = 12.0
MAX_PASSES = 10
PASS_TIMEOUT_SECONDS = 600.0  # for one pass over every row of a namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionResult:
    """What a change of keys did: the key that seals now, rows written, passes over the tables; `dropped` keys."""

    namespace: str
    key_id: str
    rows: int = 0
    passes: int = 0
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedNamespace:
    """`master_key` is the place of the master key that opens its keys in `AFTERMIND_ENCRYPTION_KEY`: 0 for the first,
    which new keys get; the last, if its keys have several; None if this process cannot open all of them.
    """

    namespace: str
    master_key: int | None


class Encryption:
    """Encryption at rest. Every call raises `InvalidScope`, `KeyMissing`, `NotAllowed` and `StoreUnavailable`.

    Needs the role of the relay or the owner, and the master key (`AFTERMIND_ENCRYPTION_KEY`, else `encryption.key` in
    the state folder, created at the first call). Reads and writes continue. Repeat an interrupted call.
    """

    def __init__(
        self, *, db: Database, vault: "Vault", trail: "Trail", namespace: str, language_for: LanguageFor
    ) -> None:
        self._db, self._vault, self._trail = db, vault, trail
        self._namespace, self._language_for = namespace, language_for

    async def key_id(self, *, namespace: str | None = None) -> str | None:
        """The key that seals what a namespace stores now; None where its content is plain."""
        name = self._name(namespace)
        async with self._db.transaction(namespace=name, read_only=True) as tx:
            return (await self._vault.load(tx, name)).current

    async def list(self) -> list[EncryptedNamespace]:
        """All encrypted namespaces that the role sees, by name: of the relay and the owner all."""
        async with self._db.transaction(read_only=True) as tx:
            found = await self._vault.master_keys(tx)
        return [EncryptedNamespace(namespace=name, master_key=place) for name, place in found.items()]

    async def encrypt(
        self, *, namespace: str | None = None, spread_seconds: float = SPREAD_SECONDS
    ) -> EncryptionResult:
        """Encrypt the stored and all later content of a namespace.

        `spread_seconds`: time to wait, before and after, until every process has loaded the key.
        """
        from aftermind.db.encryption.keyring import KeyState

        name = self._name(namespace)
        async with self._db.transaction(namespace=name) as tx:
            ring = await self._vault.load(tx, name)
            coming = [each for each, state in ring.states.items() if state is KeyState.COMING]
            if ring.current is None and not coming:
                coming = [await self._vault.add(tx, name, KeyState.COMING)]
                await self._note(tx, name, coming[0], "added")
        await self._trail.anchor()
        if coming:
            await asyncio.sleep(
                spread_seconds
            )  # all search by both hashes of a term before the first row has the other
            async with self._db.transaction(namespace=name) as tx:
                await self._vault.move(tx, name, coming[0], KeyState.CURRENT)
        done = await self._sealed(name, spread_seconds)
        async with self._db.transaction(namespace=name) as tx:
            await self._vault.settle(tx, name)
        return done

    async def rotate(self, *, namespace: str | None = None, spread_seconds: float = SPREAD_SECONDS) -> EncryptionResult:
        """Seal everything of a namespace with a new key. The old one stays, to open what a backup or a replica has."""
        from aftermind.db.encryption.keyring import KeyState

        name = await self._required(namespace)
        async with self._db.transaction(namespace=name) as tx:
            key_id = await self._vault.add(tx, name, KeyState.CURRENT)
            await self._note(tx, name, key_id, "added")
        await self._trail.anchor()
        return await self._sealed(name, spread_seconds)

    async def retire(self, *, namespace: str | None = None) -> EncryptionResult:
        """Delete old keys that encrypt no rows. Backups encrypted with them are unreadable afterwards."""
        from aftermind.stores.postgres import reencrypt as postgres_reencrypt

        name, dropped = await self._required(namespace), []
        async with self._db.transaction(namespace=name) as tx:
            ring = await self._vault.load(tx, name)
            current = ring.current or ""
            old = [each for each, number in ring.generations.items() if 0 < number < ring.generations[current]]
        for key_id in sorted(old):
            async with self._db.transaction(namespace=name, timeout=PASS_TIMEOUT_SECONDS) as tx:
                is_free = not await postgres_reencrypt.sealed_with(tx, name, key_id)
                if is_free and await self._vault.drop(tx, name, key_id):
                    await self._note(tx, name, key_id, "dropped")
                    dropped.append(key_id)
            await self._trail.anchor()
        return EncryptionResult(namespace=name, key_id=current, dropped=tuple(dropped))

    async def rewrap(self, *, namespace: str | None = None) -> int:
        """Re-encrypt the keys of a namespace with the first master key; returns their number. No row is
        re-encrypted.
        """
        name = await self._required(namespace)
        async with self._db.transaction(namespace=name) as tx:
            count = await self._vault.rewrap(tx, name)
            await self._note(tx, name, "all", "re-encrypted")
        await self._trail.anchor()
        return count

    async def _sealed(self, name: str, spread_seconds: float) -> EncryptionResult:
        """Passes over every table, until one finds nothing that is sealed otherwise, nor could any come."""
        from aftermind.stores.postgres import reencrypt as postgres_reencrypt

        rows, passes, stale = 0, 0, 1
        async with self._db.transaction(namespace=name) as tx:
            key_id = (await self._vault.load(tx, name)).current or ""
        while stale and passes < MAX_PASSES:
            passes += 1
            stale = 0
            for table in postgres_reencrypt.TABLES:
                after: postgres_reencrypt.Cursor = None
                while True:
                    async with self._db.transaction(namespace=name) as tx:
                        found, written, after = await postgres_reencrypt.step(
                            tx, self._vault, name, table, after, language=self._language_for(name), limit=BATCH_ROWS
                        )
                    stale, rows = stale + found, rows + written
                    if after is None:
                        break
            if stale or passes == 1:  # a process with the old key may have written after this pass: repeat it
                stale = max(stale, 1)
                if passes == MAX_PASSES:
                    why = f"{stale:,} rows were still sealed otherwise after {passes} passes"
                    raise errors.Unavailable(f"{name!r}: {why}: a process still writes with the old key. Retry.")
                await asyncio.sleep(spread_seconds)
        return EncryptionResult(namespace=name, key_id=key_id, rows=rows, passes=passes)

    async def _required(self, namespace: str | None) -> str:
        name = self._name(namespace)
        if await self.key_id(namespace=name) is None:
            why = "its content is not encrypted; `aftermind encrypt` begins it."
            raise errors.InvalidSettings("namespace", name, why)
        return name

    async def _note(self, tx: Transaction, name: str, key_id: str, what: str) -> None:
        await self._trail.append(tx, name, Action.KEYS, detail={"key": key_id, "was": what})

    def _name(self, namespace: str | None) -> str:
        return Scope(namespace=self._namespace if namespace is None else namespace).namespace
