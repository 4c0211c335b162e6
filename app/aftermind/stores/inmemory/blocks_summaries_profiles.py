"""Blocks, summaries and profiles of one process."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.types import Block, Profile, Scope, Summary, Trait

PROFILE = "profile"  # the key of an owner's only row


class InMemoryDocuments:
    """The part of the store that keeps documents. See `Store` for what each method promises."""

    async def block(self, tx: Transaction, owner: Scope, name: str) -> Block | None:
        found: Block | None = (await mem(tx).owned("blocks", owner)).get(name)
        return found

    async def blocks(self, tx: Transaction, owner: Scope) -> list[Block]:
        return sorted((await mem(tx).owned("blocks", owner)).values(), key=lambda block: block.name)

    async def put_block(self, tx: Transaction, block: Block, *, expected_version: int | None) -> Block:
        rows = await mem(tx).owned("blocks", block.scope)
        found = rows[block.name].version if block.name in rows else 0
        if expected_version is not None and expected_version != found:
            raise errors.BlockConflict(block.name, expected_version, found)
        stored = dataclasses.replace(block, scope=block.scope.owner, version=found + 1)
        mem(tx).put(rows, block.name, stored)
        return stored

    async def delete_block(self, tx: Transaction, owner: Scope, name: str) -> bool:
        return mem(tx).drop(await mem(tx).owned("blocks", owner), name)

    async def summary(self, tx: Transaction, owner: Scope, session_id: str | None) -> Summary | None:
        found: Summary | None = (await mem(tx).owned("summaries", owner)).get(session_id)
        return found

    async def summaries(self, tx: Transaction, owner: Scope, *, limit: int = 20) -> list[Summary]:
        rows = (await mem(tx).owned("summaries", owner)).values()
        return sorted(rows, key=lambda summary: summary.updated_at, reverse=True)[:limit]

    async def put_summary(self, tx: Transaction, summary: Summary, *, over: int | None = None) -> bool:
        rows = await mem(tx).owned("summaries", summary.scope)
        before: Summary | None = rows.get(summary.scope.session_id)
        if before is not None and before.covers_to > summary.covers_to and before.version != over:
            return False
        version = 1 if before is None else before.version + 1
        scope = dataclasses.replace(summary.scope, agent_id=None)
        mem(tx).put(rows, summary.scope.session_id, dataclasses.replace(summary, scope=scope, version=version))
        return True

    async def profile(self, tx: Transaction, owner: Scope) -> Profile | None:
        found: Profile | None = (await mem(tx).owned("profiles", owner)).get(PROFILE)
        return found

    async def merge_profile(
        self, tx: Transaction, owner: Scope, traits: Mapping[str, Trait | None], *, at: datetime, replace: bool = False
    ) -> Profile:
        before = await self.profile(tx, owner) or Profile(scope=owner.owner)
        kept = {} if replace else {name: each for name, each in before.traits.items() if name not in traits}
        timed = {name: dataclasses.replace(trait, updated_at=at) for name, trait in traits.items() if trait is not None}
        merged = dict(sorted({**kept, **timed}.items()))
        after = Profile(scope=owner.owner, traits=merged, version=before.version + 1, updated_at=at)
        mem(tx).put(await mem(tx).owned("profiles", owner), PROFILE, after)
        return after
