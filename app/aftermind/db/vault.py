"""`Vault`: the keys of namespaces whose content is encrypted, unwrapped in this process alone.

Each namespace has keys of its own as rows, wrapped by a master key that is not in the database. The newest content key
seals; every one opens. One key more, for terms, never changes: search looks up keyed hashes of stems.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import text

from aftermind import errors
from aftermind.db import sealing
from aftermind.db.base import Transaction
from aftermind.db.transaction import pg

FRESH_SECONDS = 2.0  # for so long a process may not know of a new key; whoever changes keys waits for longer
TERMS = "terms"
RINGS_KEPT = 4_096  # namespaces of which a process keeps keys, a kilobyte each: those that it looked at last

_KEYS = text("SELECT id, generation, state, wrapped FROM aftermind.data_keys WHERE namespace = :namespace")
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
    """What is known of a namespace's keys. None is ever taken out again: a lagging replica may not have it yet."""

    keys: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, KeyState] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    looked_at: float = float("-inf")

    @property
    def current(self) -> str | None:
        """The key that seals; None where content stays plain."""
        named = [name for name, state in self.states.items() if state is KeyState.CURRENT]
        return max(named, key=lambda name: self.generations[name], default=None)

    @property
    def terms(self) -> bytes | None:
        """The key of terms; None where they are hashed without one."""
        return self.keys.get(TERMS) if self.current is not None else None

    @property
    def term_keys(self) -> tuple[bytes, ...]:
        """The keys by which terms of this namespace may be found; b"" is none."""
        if TERMS not in self.keys:
            return (b"",)
        return (self.keys[TERMS],) if self.states[TERMS] is KeyState.SETTLED else (self.keys[TERMS], b"")


class Vault:
    """Keys of every namespace, loaded when they are needed. Usable from several loops and threads.

    `masters` gives the master keys, the first of which wraps; it is asked only where a namespace has keys.
    """

    def __init__(self, masters: Callable[[], tuple[bytes, ...]]) -> None:
        self._masters = masters
        # A key file that was lost must not be replaced by one that opens nothing.
        self._existing: Callable[[], tuple[bytes, ...]] = getattr(masters, "existing", masters)
        self._rings: OrderedDict[str, Ring] = OrderedDict()  # the one that was looked at last stands last

    def known(self, namespace: str) -> Ring | None:
        """What is known of a namespace, at most two seconds old; None where somebody has to look."""
        ring = self._rings.get(namespace)
        return None if ring is None or time.monotonic() - ring.looked_at > FRESH_SECONDS else ring

    async def ring(self, tx: Transaction, namespace: str) -> Ring:
        """What is known of a namespace, at most two seconds old. Raises `KeyMissing`."""
        return self.known(namespace) or await self.load(tx, namespace)

    async def load(self, tx: Transaction, namespace: str) -> Ring:
        """Look now. Raises `KeyMissing`."""
        ring = self._rings.pop(namespace, None) or Ring()
        self._rings[namespace] = ring
        while len(self._rings) > RINGS_KEPT:  # what goes is loaded again, as by a process that has just started
            self._rings.popitem(last=False)
        began = time.monotonic()
        for row in await pg(tx).rows(_KEYS, namespace=namespace):
            state = KeyState(row.state)
            if row.id not in ring.keys:
                ring.keys[row.id] = self._unwrapped(namespace, row.id, bytes(row.wrapped))
            known = ring.states.get(row.id, state)
            ring.states[row.id] = max(known, state, key=_ORDER.index)  # a replica may tell of an earlier state
            ring.generations[row.id] = row.generation
        ring.looked_at = began
        return ring

    async def opening(self, tx: Transaction, namespace: str, texts: Iterable[str]) -> Ring | None:
        """The keys that open these texts; None where none of them is sealed. Raises `KeyMissing`."""
        wanted = {sealing.key_id_of(each) for each in texts if sealing.is_sealed(each)}
        if not wanted:
            return None
        ring = self._rings.get(namespace)
        if ring is None or not wanted <= ring.keys.keys():
            ring = await self.load(tx, namespace)
        for missing in sorted(wanted - ring.keys.keys()):
            raise errors.KeyMissing(namespace, missing, "the database has no such key")
        return ring

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
            wrapped = self._wrapped(namespace, name, secrets.token_bytes(sealing.KEY_BYTES))
            given = {"namespace": namespace, "id": name, "generation": number, "state": at_first, "wrapped": wrapped}
            await pg(tx).execute(_ADD, given)
        return key_id

    async def move(self, tx: Transaction, namespace: str, key_id: str, state: KeyState) -> None:
        """Bring a key into another state."""
        await pg(tx).execute(_MOVE, {"namespace": namespace, "id": key_id, "state": state})

    async def drop(self, tx: Transaction, namespace: str, key_id: str) -> bool:
        """Delete a key: what is sealed with it can be opened by nobody any more, in no backup either. Was it there?"""
        return await pg(tx).count(_DROP, namespace=namespace, id=key_id) == 1

    async def rewrap(self, tx: Transaction, namespace: str) -> int:
        """Wrap every key of a namespace by the first master key; how many."""
        ring = await self.load(tx, namespace)
        count = 0
        for name, key in ring.keys.items():  # also such as were dropped: of those there is no row
            count += await pg(tx).count(
                _REWRAP, namespace=namespace, id=name, wrapped=self._wrapped(namespace, name, key)
            )
        return count

    def _wrapped(self, namespace: str, key_id: str, key: bytes) -> bytes:
        return sealing.wrap(_derived(self._masters()[0]), key, "data_keys", namespace, key_id)

    def _unwrapped(self, namespace: str, key_id: str, wrapped: bytes) -> bytes:
        for master in self._existing():
            key = sealing.unwrap(_derived(master), wrapped, "data_keys", namespace, key_id)
            if key is not None:
                return key
        why = "no master key of this process opens it: restore encryption.key, or set AFTERMIND_ENCRYPTION_KEY"
        raise errors.KeyMissing(namespace, key_id, why)


def no_masters() -> tuple[bytes, ...]:
    """Of a store that was given no vault."""
    return ()


def _derived(master: bytes) -> bytes:
    """32 bytes of whatever was set as the master key."""
    return hashlib.sha256(b"aftermind master key\0" + master).digest()
