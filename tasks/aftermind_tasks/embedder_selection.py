"""Which embedders a worker uses: the configured one, and during a re-embedding the other one of the pair.

A worker writes vectors only of embedders whose vectors the store holds (`StoredEmbedders`). If the configured embedder
is not among them, embed jobs wait, and turns are stored without vectors.
"""

import asyncio
from time import monotonic

from aftermind import errors
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.types import EmbedderIdentity, StoredEmbedders
from aftermind_tasks.runtime import Runtime

STORED_SECONDS = 2.0  # that an answer of the store serves: statements that write check it again


async def stored(runtime: Runtime, *, refresh: bool = False) -> StoredEmbedders | None:
    """The embedders whose vectors the store holds, as they were a moment ago; `refresh` reads them now."""
    opened = runtime.opened
    if refresh or monotonic() - opened.read_at >= STORED_SECONDS:
        async with runtime.db.transaction(read_only=True) as tx:
            note(runtime, await runtime.store.stored_embedders(tx))
    return opened.stored


def note(runtime: Runtime, found: StoredEmbedders | None) -> None:
    """Keep what a transaction has read."""
    runtime.opened.stored, runtime.opened.read_at = found, monotonic()


async def configured(runtime: Runtime) -> EmbedderIdentity | None:
    """The identity of the configured embedder; None without one."""
    if runtime.opened.configured is None and runtime.embedder is not None:
        runtime.opened.configured = await asyncio.to_thread(embedder_identity, runtime.embedder)
    return runtime.opened.configured


async def is_active(runtime: Runtime, known: StoredEmbedders | None) -> bool:
    """Whether the configured embedder makes the vectors that recall compares with."""
    return known is None or await configured(runtime) == known.active


async def embeds_inline(runtime: Runtime) -> bool:
    """Whether turns are stored with their vectors: the embedder is inline, and the active one."""
    embedder = runtime.embedder
    return embedder is not None and embedder.inline and await is_active(runtime, await stored(runtime))


def needs_job(runtime: Runtime, *, is_embedded: bool) -> bool:
    """Whether episodes lack vectors that an embed job makes. `is_embedded`: they are stored with the active ones."""
    known = runtime.opened.stored
    return runtime.embedder is not None and (not is_embedded or (known is not None and known.standby is not None))


async def find(runtime: Runtime, wanted: EmbedderIdentity, known: StoredEmbedders) -> Embedder:
    """The embedder of an identity. Raises `EmbedderMismatch` or `InvalidSettings` if this worker does not have it.

    A worker that is configured with either embedder of a re-embedding opens the other one by its name.
    """
    mine = await configured(runtime)
    if runtime.embedder is not None and wanted == mine:
        return runtime.embedder
    if mine not in known:
        raise errors.EmbedderMismatch(known.active, mine)
    if wanted not in runtime.opened.others:
        made = await asyncio.to_thread(factory.make_embedder_for, wanted, runtime.settings, providers=runtime.providers)
        if made is None:
            raise errors.EmbedderMismatch(wanted, mine)
        runtime.opened.others[wanted] = made
    return runtime.opened.others[wanted]
