"""What of a namespace is encrypted: seals and opens episodes, facts, blocks, summaries and traits.

Sealed: what was said (`episodes.content`), objects of facts and claims, texts of blocks and summaries, values of
traits. Plain, for rows are found by them: ids, labels, roles, speakers' names, metadata, times, subjects, predicates,
vectors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import orjson

from aftermind.db import sealing
from aftermind.db.base import Transaction
from aftermind.db.vault import Ring, Vault
from aftermind.types import Block, Episode, Fact, Profile, Scope, Summary, Trait
from aftermind.types.claim import Said

T = TypeVar("T")


def place_of_episode(owner: Scope, row: object) -> tuple[str, ...]:
    """What an episode's content is bound to; the others likewise."""
    return "episodes", "content", owner.namespace, owner.user_column, str(row)


def place_of_fact(owner: Scope, row: object) -> tuple[str, ...]:
    """As `place_of_episode`."""
    return "facts", "object", owner.namespace, owner.user_column, str(row)


def place_of_claim(owner: Scope, row: object) -> tuple[str, ...]:
    """As `place_of_episode`."""
    return "claims", "object", owner.namespace, owner.user_column, str(row)


def place_of_block(owner: Scope, row: object) -> tuple[str, ...]:
    """As `place_of_episode`."""
    return "blocks", "content", owner.namespace, owner.user_column, str(row)


def place_of_summary(owner: Scope, row: object) -> tuple[str, ...]:
    """As `place_of_episode`."""
    return "summaries", "text", owner.namespace, owner.user_column, str(row or "")


def place_of_trait(owner: Scope, row: object) -> tuple[str, ...]:
    """As `place_of_episode`."""
    return "profile_traits", "value", owner.namespace, owner.user_column, str(row)


def sealed(ring: Ring, text: str, where: tuple[str, ...]) -> str:
    """A text as it is to be stored in this namespace."""
    key_id = ring.current
    return sealing.plain(text) if key_id is None else sealing.seal(key_id, ring.keys[key_id], text, *where)


def sealed_fact(ring: Ring, fact: Fact) -> Fact:
    """A fact as it is to be stored."""
    return replace(fact, object=sealed(ring, fact.object, place_of_fact(fact.scope, fact.id)))


def opened(ring: Ring | None, text: str, where: tuple[str, ...]) -> str:
    """The stored text as it was said."""
    if ring is None or not sealing.is_sealed(text):
        return sealing.unsealed(text)
    return sealing.opened(ring.keys[sealing.key_id_of(text)], text, *where)


async def open_episodes(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Episode]) -> list[Episode]:
    """Episodes with their content as it was said."""
    return await _open(
        vault, tx, owner, found, lambda each: each.content, lambda each: place_of_episode(owner, each.id), _with_content
    )


async def open_facts(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Fact]) -> list[Fact]:
    """Facts with their objects."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.object,
        lambda each: place_of_fact(owner, each.id),
        lambda each, text: replace(each, object=text),
    )


async def open_said(vault: Vault, tx: Transaction, owner: Scope, found: Sequence[Said]) -> list[Said]:
    """Claims with their objects."""
    return await _open(
        vault,
        tx,
        owner,
        found,
        lambda each: each.claim.object,
        lambda each: place_of_claim(owner, each.id),
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
        lambda each: place_of_block(owner, each.name),
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
        lambda each: place_of_summary(owner, each.scope.session_id),
        lambda each, text: replace(each, text=text),
    )


async def open_profile(vault: Vault, tx: Transaction, owner: Scope, found: Profile | None) -> Profile | None:
    """A profile with the values of its traits."""
    if found is None:
        return None
    texts = {name: trait.value for name, trait in found.traits.items() if isinstance(trait.value, str)}
    if not any(text.startswith(sealing.MARK) for text in texts.values()):
        return found
    ring = await vault.opening(tx, owner.namespace, texts.values())
    traits = dict(found.traits)
    for name, text in texts.items():
        value = opened(ring, text, place_of_trait(owner, name))
        traits[name] = replace(traits[name], value=orjson.loads(value) if sealing.is_sealed(text) else value)
    return replace(found, traits=traits)


def sealed_traits(ring: Ring, owner: Scope, traits: Mapping[str, Trait]) -> Mapping[str, Trait]:
    """Traits as they are to be stored: any JSON value becomes one sealed text."""
    if ring.current is None:
        return {
            name: replace(trait, value=sealing.plain(trait.value)) if isinstance(trait.value, str) else trait
            for name, trait in traits.items()
        }
    return {
        name: replace(trait, value=sealed(ring, orjson.dumps(trait.value).decode(), place_of_trait(owner, name)))
        for name, trait in traits.items()
    }


async def _open(
    vault: Vault,
    tx: Transaction,
    owner: Scope,
    found: Sequence[T],
    text_of: Callable[[T], str],
    place_of: Callable[[T], tuple[str, ...]],
    with_text: Callable[[T, str], T],
) -> list[T]:
    texts: Iterable[str] = [text_of(each) for each in found]
    if not any(text.startswith(sealing.MARK) for text in texts):  # nearly always: one look at each text, no copy
        return list(found)
    ring = await vault.opening(tx, owner.namespace, texts)
    return [
        with_text(each, opened(ring, text_of(each), place_of(each))) if text_of(each).startswith(sealing.MARK) else each
        for each in found
    ]


def _with_content(episode: Episode, text: str) -> Episode:
    return replace(episode, content=text)
