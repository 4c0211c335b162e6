"""The keys of encrypted namespaces, decrypted only in this process.

Each namespace has separate keys as rows, encrypted with a master key that is not in the database. The newest content
key encrypts; all of them decrypt. A further key, for terms, never changes: search uses keyed hashes of stems.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption import cipher
from aftermind.db.encryption.keyfiles import LazyKeys
from aftermind.db.postgres_transaction import pg

FRESH_SECONDS = 2.0  # a process may use old keys for this time; key changes wait longer
TERMS = "terms"
RINGS_KEPT = 4_096  # namespaces whose keys a process keeps, a kilobyte each: the most recently used

_KEYS = text("SELECT id, generation, state, wrapped FROM aftermind.data_keys WHERE namespace = :namespace")
_ALL_KEYS = text("SELECT namespace, id, wrapped FROM aftermind.data_keys ORDER BY namespace")
_ADD = text(
    """
    INSERT INTO aftermind.data_keys (namespace, id, generation, state, wrapped)
    VALUES (:namespace, :id, :generation, :state, :wrapped) ON CONFLICT DO NOTHING
    """
)
_MOVE = text("UPDATE aftermind.data_keys SET state = :state WHERE namespace = :namespace AND id = :id")
_REWRAP = text("UPDATE aftermind.data_keys SET wrapped = :wrapped WHERE namespace = :namespace AND id = :id")
_DROP = text("DELETE FROM aftermind.data_keys WHERE namespace = :namespace AND id = :id")


class KeyState(StrEnum):
    """Of a content key: announced and not used yet; sealing; only opening. Of the terms key: some rows, all rows."""

    COMING = "coming"
    CURRENT = "current"
    OLD = "old"
    SETTLING = "settling"
    SETTLED = "settled"


_ORDER = list(KeyState)


@dataclass(slots=True)
class Ring:
    """The loaded keys of a namespace. None is ever removed: a lagging replica may not have it yet."""

    keys: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, KeyState] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    looked_at: float = float("-inf")

    @property
    def current(self) -> str | None:
        """The key that seals; None where content stays plain."""
        named = [name for name, state in self.states.items() if state is KeyState.CURRENT]
        if not named and self.is_settled:  # states are not authenticated: content must not become plain by one
            named = [name for name in self.states if name != TERMS]
        return max(named, key=lambda name: self.generations[name], default=None)

    @property
    def terms(self) -> bytes | None:
        """The key of terms; None where they are hashed without one."""
        return self.keys.get(TERMS) if self.current is not None else None

    @property
    def is_settled(self) -> bool:
        """Whether every text of the namespace is sealed, so that a plain one was not written by us."""
        return self.states.get(TERMS) is KeyState.SETTLED

    @property
    def term_keys(self) -> tuple[bytes, ...]:
        """The keys by which terms of this namespace may be found; b"" is none."""
        if TERMS not in self.keys:
            return (b"",)
        return (self.keys[TERMS],) if self.is_settled else (self.keys[TERMS], b"")


class Vault:
    """Keys of every namespace, loaded when they are needed. Usable from several loops and threads.

    `masters` gives the master keys, the first of which wraps; it is asked only where a namespace has keys. None: of a
    store without encrypted namespaces.
    """

    def __init__(self, masters: LazyKeys | None = None) -> None:
        self._masters = masters
        self.refused = 0  # texts that were not what this process or another had sealed, since the start
        self._rings: OrderedDict[str, Ring] = OrderedDict()  # the most recently used is last

    def known(self, namespace: str) -> Ring | None:
        """The loaded keys of a namespace, at most two seconds old; None if they must be loaded."""
        ring = self._rings.get(namespace)
        return None if ring is None or time.monotonic() - ring.looked_at > FRESH_SECONDS else ring

    async def ring(self, tx: Transaction, namespace: str) -> Ring:
        """The keys of a namespace, at most two seconds old. Raises `KeyMissing`."""
        return self.known(namespace) or await self.load(tx, namespace)

    async def load(self, tx: Transaction, namespace: str) -> Ring:
        """Load the keys now. Raises `KeyMissing`."""
        ring = self._rings.pop(namespace, None) or Ring()
        self._rings[namespace] = ring
        while len(self._rings) > RINGS_KEPT:  # evicted keys are loaded again, as in a new process
            self._rings.popitem(last=False)
        began = time.monotonic()
        for row in await pg(tx).rows(_KEYS, namespace=namespace):
            state = KeyState(row.state)
            known = ring.states.get(row.id, state)
            if row.id not in ring.keys:
                ring.keys[row.id], is_settled = self._unwrapped(namespace, row.id, bytes(row.wrapped))
                known = KeyState.SETTLED if is_settled else known
            ring.states[row.id] = max(known, state, key=_ORDER.index)  # a replica may have an earlier state
            ring.generations[row.id] = row.generation
        ring.looked_at = began
        return ring

    async def opening(self, tx: Transaction, namespace: str, texts: Iterable[str]) -> Ring | None:
        """The keys that open these texts; None where none of them is sealed. Raises `KeyMissing`."""
        wanted = {cipher.parse_key_id(each) for each in texts if cipher.is_sealed(each)}
        if not wanted:
            return None
        ring = self._rings.get(namespace)
        if ring is None or not wanted <= ring.keys.keys():
            ring = await self.load(tx, namespace)
        for missing in sorted(wanted - ring.keys.keys()):
            raise errors.KeyMissing(namespace, missing, "the database has no such key")
        return ring

    async def master_keys(self, tx: Transaction) -> dict[str, int | None]:
        """By encrypted namespace the master key that opens its keys: 0 for the first, the last of several; None where
        none opens one of them. Of the namespaces that the role sees.
        """
        found: dict[str, int | None] = {}
        for row in await pg(tx).rows(_ALL_KEYS):
            opened = self._unwrap(row.namespace, row.id, bytes(row.wrapped))
            before = found.get(row.namespace, 0)
            found[row.namespace] = None if opened is None or before is None else max(before, opened[2])
        return found

    # changing keys

    async def add(self, tx: Transaction, namespace: str, state: KeyState) -> str:
        """A new content key; its id. The first brings the key of terms with it."""
        ring = await self.load(tx, namespace)
        generation = max(ring.generations.values(), default=0) + 1
        key_id = f"k{generation}"
        made = [(key_id, generation, state)]
        if TERMS not in ring.keys:
            made.append((TERMS, 0, KeyState.SETTLING))
        for name, number, at_first in made:
            wrapped = await self._wrapped(tx, namespace, name, secrets.token_bytes(cipher.KEY_BYTES))
            given = {"namespace": namespace, "id": name, "generation": number, "state": at_first, "wrapped": wrapped}
            await pg(tx).execute(_ADD, given)
        return key_id

    async def move(self, tx: Transaction, namespace: str, key_id: str, state: KeyState) -> None:
        """Bring a key into another state."""
        await pg(tx).execute(_MOVE, {"namespace": namespace, "id": key_id, "state": state})

    async def settle(self, tx: Transaction, namespace: str) -> None:
        """Refuse plain text from now on. The wrapped key of terms records it, so the row's state cannot undo it."""
        ring = await self.load(tx, namespace)
        await self.move(tx, namespace, TERMS, KeyState.SETTLED)
        wrapped = await self._wrapped(tx, namespace, TERMS, ring.keys[TERMS], is_settled=True)
        await pg(tx).execute(_REWRAP, {"namespace": namespace, "id": TERMS, "wrapped": wrapped})

    async def drop(self, tx: Transaction, namespace: str, key_id: str) -> bool:
        """Delete a key: content encrypted with it is unreadable from then on, in backups too. Returns whether it
        existed.
        """
        return await pg(tx).count(_DROP, namespace=namespace, id=key_id) == 1

    async def rewrap(self, tx: Transaction, namespace: str) -> int:
        """Wrap every key of a namespace by the first master key; how many."""
        ring = await self.load(tx, namespace)
        count = 0
        for name, key in ring.keys.items():  # also such as were dropped: of those there is no row
            is_settled = name == TERMS and ring.is_settled
            wrapped = await self._wrapped(tx, namespace, name, key, is_settled=is_settled)
            count += await pg(tx).count(_REWRAP, namespace=namespace, id=name, wrapped=wrapped)
        return count

    async def _wrapped(
        self, tx: Transaction, namespace: str, key_id: str, key: bytes, *, is_settled: bool = False
    ) -> bytes:
        if self._masters is None:
            raise errors.Bug("a store without master keys was asked for a key.")
        master = (await self._masters.for_writing(tx))[0]
        return cipher.wrap(_derived(master), key, *_place(namespace, key_id, is_settled=is_settled))

    def _unwrapped(self, namespace: str, key_id: str, wrapped: bytes) -> tuple[bytes, bool]:
        """The key, and whether it was wrapped as that of a settled namespace. Raises `KeyMissing`."""
        opened = self._unwrap(namespace, key_id, wrapped)
        if opened is None:
            why = "no master key of this process opens it: restore encryption.key, or set AFTERMIND_ENCRYPTION_KEY"
            raise errors.KeyMissing(namespace, key_id, why)
        return opened[:2]

    def _unwrap(self, namespace: str, key_id: str, wrapped: bytes) -> tuple[bytes, bool, int] | None:
        """The key, whether it was wrapped as that of a settled namespace, and the place of the master key."""
        for number, master in enumerate(() if self._masters is None else self._masters.existing()):
            for is_settled in (False, True):
                place = _place(namespace, key_id, is_settled=is_settled)
                key = cipher.unwrap(_derived(master), wrapped, *place)
                if key is not None:
                    return key, is_settled, number
        return None


def _place(namespace: str, key_id: str, *, is_settled: bool) -> tuple[str, ...]:
    """What a wrapped key is bound to."""
    return "data_keys", namespace, key_id, *(["settled"] if is_settled else [])


def _derived(master: bytes) -> bytes:
    """32 bytes of whatever was set as the master key."""
    return hashlib.sha256(b"aftermind master key\0" + master).digest()
