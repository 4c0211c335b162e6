"""Encrypted content of a namespace: encrypts and decrypts episodes, facts, blocks, summaries and traits.

Encrypted: messages (`episodes.content`), objects of facts and assertions, texts of blocks and summaries, values of
traits. Plain, because rows are found by them: ids, labels, roles, speakers' names, metadata, times, subjects,
predicates, vectors.

A text is bound to its row. Texts that can change (blocks, summaries, traits) are also bound to the time of the row's
last write, so that an older text of the same row does not decrypt. Once the encryption of a namespace is complete,
plain text is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import orjson

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption import cipher
from aftermind.db.encryption.keyring import Ring, Vault
from aftermind.stores.protocol import StoredItem
from aftermind.telemetry.logger import get_logger
from aftermind.types import Block, Episode, Fact, Profile, Scope, Summary, Trait
from aftermind.types.assertion import RecordedAssertion

log = get_logger(__name__)

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Column(NamedTuple):
    """A sealed column."""

    table: str
    name: str

    def place(self, owner: Scope, row: object, written_at: datetime | None = None) -> tuple[str, ...]:
        """What a text is bound to. `written_at`: when the row was last written, for rows whose text can change."""
        version = "" if written_at is None else str((written_at - _EPOCH) // _EPOCH.resolution)
        return *self, owner.namespace, owner.user_column, str(row or ""), version


EPISODE_TEXT = Column("episodes", "content")
FACT_OBJECT = Column("facts", "object")
CLAIM_OBJECT = Column("assertions", "object")
BLOCK_TEXT = Column("blocks", "content")
ITEM_CONTENT = Column("items", "content")
SUMMARY_TEXT = Column("summaries", "text")
TRAIT_VALUE = Column("profile_traits", "value")


def sealed(ring: Ring, text: str, where: tuple[str, ...]) -> str:
    """A text as it is to be stored in this namespace."""
    key_id = ring.current
    return cipher.plain(text) if key_id is None else cipher.seal(key_id, ring.keys[key_id], text, *where)


def sealed_fact(ring: Ring, fact: Fact) -> Fact:
    """A fact as it is to be stored."""
    return replace(fact, object=sealed(ring, fact.object, FACT_OBJECT.place(fact.scope, fact.id)))


def opened(ring: Ring, text: str, where: tuple[str, ...]) -> str:
    """The stored text as it was written. Raises `Unreadable`."""
    if cipher.is_sealed(text):
        return cipher.opened(ring.keys[cipher.parse_key_id(text)], text, *where)
    if ring.is_settled:
        raise errors.PlainTextRefused(where[0], where[4])
    return cipher.unsealed(text)


async def open_episodes(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Episode]) -> list[Episode]:
    """Episodes with their content decrypted."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.content,
        lambda each: EPISODE_TEXT.place(owner, each.id),
        lambda each, text: replace(each, content=text),
    )


async def open_facts(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Fact]) -> list[Fact]:
    """Facts with their objects."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.object,
        lambda each: FACT_OBJECT.place(owner, each.id),
        lambda each, text: replace(each, object=text),
    )


async def open_said(
    vault: Vault, tx: Transaction, owner: Scope, found: Sequence[RecordedAssertion]
) -> list[RecordedAssertion]:
    """Claims with their objects."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.claim.object,
        lambda each: CLAIM_OBJECT.place(owner, each.id),
        lambda each, text: replace(each, claim=replace(each.claim, object=text)),
    )


async def open_blocks(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Block]) -> list[Block]:
    """Blocks with their texts."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.content,
        lambda each: BLOCK_TEXT.place(owner, each.name, each.updated_at),
        lambda each, text: replace(each, content=text),
    )


async def open_items(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[StoredItem]) -> list[StoredItem]:
    """Items with their contents."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.content,
        lambda each: ITEM_CONTENT.place(owner, each.name, each.updated_at),
        lambda each, text: replace(each, content=text),
    )


async def open_summaries(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Summary]) -> list[Summary]:
    """Summaries with their texts."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.text,
        lambda each: SUMMARY_TEXT.place(owner, each.scope.session_id, each.updated_at),
        lambda each, text: replace(each, text=text),
    )


async def open_profile(vault: Vault, tx: Transaction, owner: Scope, found: Profile | None) -> Profile | None:
    """A profile with the values of its traits."""
    if found is None:
        return None
    texts = [trait.value for trait in found.traits.values() if isinstance(trait.value, str)]
    ring = await _ring(vault, tx, owner, texts)
    if ring is None:
        return found
    with _counting(vault):
        return replace(
            found, traits={name: _opened_trait(ring, owner, name, trait) for name, trait in found.traits.items()}
        )


def sealed_trait(ring: Ring, owner: Scope, name: str, trait: Trait, *, at: datetime) -> Trait:
    """A trait as it is to be stored at a time: any JSON value becomes one sealed text."""
    if ring.current is not None:
        text = orjson.dumps(trait.value).decode()
        return replace(trait, value=sealed(ring, text, TRAIT_VALUE.place(owner, name, at)))
    return replace(trait, value=cipher.plain(trait.value)) if isinstance(trait.value, str) else trait


async def _open(
    vault: Vault,
    tx: Transaction,
    owner: Scope,
    found: Sequence[T],
    text_of: Callable[[T], str],
    place_of: Callable[[T], tuple[str, ...]],
    with_text: Callable[[T, str], T],
) -> list[T]:
    ring = await _ring(vault, tx, owner, [text_of(each) for each in found])
    if ring is None:
        return list(found)
    with _counting(vault):
        return [with_text(each, opened(ring, text_of(each), place_of(each))) for each in found]


async def _ring(vault: Vault, tx: Transaction, owner: Scope, texts: Sequence[str]) -> Ring | None:
    """The keys that open these texts; None if they are all plain, as they should be, and none has to be unescaped."""
    ring = await vault.ring(tx, owner.namespace)
    if not ring.is_settled and not any(text.startswith(cipher.MARK) for text in texts):
        return None
    return await vault.opening(tx, owner.namespace, texts) or ring


def _opened_trait(ring: Ring, owner: Scope, name: str, trait: Trait) -> Trait:
    where = TRAIT_VALUE.place(owner, name, trait.updated_at)
    if not isinstance(trait.value, str):  # JSON that is not sealed
        if ring.is_settled:
            raise errors.PlainTextRefused(where[0], where[4])
        return trait
    value = opened(ring, trait.value, where)
    return replace(trait, value=orjson.loads(value) if cipher.is_sealed(trait.value) else value)


@contextmanager
def _counting(vault: Vault) -> Iterator[None]:
    try:
        yield
    except errors.Unreadable as exc:
        vault.refused += 1
        log.error("stored text refused", extra={"table": exc.table, "row": exc.row, "error": str(exc)})
        raise
