"""Everything that an agent, an operator and workers do with a tenant, as what was answered: without ids and times."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from aftermind import Memory
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.receipt import Receipt
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.replay import JobFilter, PlanState, ReplayPlan
from aftermind.types.webhook import Webhook
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.waiting import wait_until
from tests.support.workers import HOPELESS

Answers = dict[str, object]
Named = dict[str, Any]  # Any: what a call is told of whom it is for

SECONDS = 60.0  # for work to be done by workers
QUICK = {  # as workers are told: waits that are tuned to people
    "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.1",
    "AFTERMIND_SUMMARY_QUIET_SECONDS": "0.1",
    "AFTERMIND_PROFILE_QUIET_SECONDS": "0.1",
    "AFTERMIND_BACKOFF_BASE_SECONDS": "0.05",
    "AFTERMIND_RECONCILE_SECONDS": "0.3",
    "AFTERMIND_HOUSEKEEPING_SECONDS": "0.5",
}
FACTS = {
    "I like fjords.": [{"subject": "user", "predicate": "likes", "object": "fjords"}],
    "I live in Oslo.": [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}],
    "I sing.": [{"subject": "user", "predicate": "does", "object": "singing"}],
    "I ski.": [{"subject": "user", "predicate": "does", "object": "skiing"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """A memory, the model behind its workers, where webhooks lead, and a folder for what a policy lets go."""

    memory: Memory
    model: ScriptedOpenAI
    hook: str
    archive: Path

    async def lives(self, tenant: str) -> Answers:
        """What happens once in a tenant that nobody has met: all that writes, waits and deletes."""
        self.model.script.facts = FACTS
        return {
            **await self._operates(tenant),
            **await self._talks(tenant),
            **await self._edits(tenant),
            **await self._fails(tenant),
            **await self._takes_back(tenant),
            **await self._seals(tenant),
        }

    async def reads(self, tenant: str) -> Answers:
        """What can be asked any number of times."""
        memory, who = self.memory, _of("ann", tenant)
        block = await memory.recall("Which fjords do I like?", **who)
        summary = await memory.summary(session_id="s", **who)
        profile = await memory.profile(**who)
        policy = await memory.retention.get(namespace=tenant)
        taken = await memory.export(vectors=True, **who)
        progress = await memory.progress(**who)
        return {
            "recall": (
                block.degraded,
                sorted(each.item.content for each in block.matches if hasattr(each.item, "role")),
            ),
            "shown": (block.summary is not None, block.profile is not None, [each.name for each in block.blocks]),
            "scored": len(await memory.recall_scored("Which fjords do I like?", **who)),
            "filtered": len(await memory.recall_scored("fjords", in_session="s", roles=["user"], **who)),
            "history": [each.content for each in await memory.history(**who)],
            "search": [each.content for each in await memory.search(metadata={"a": 1}, **who)],
            "window": len(await memory.context_window(1_000, **who)),
            "sessions": [(each.session_id, each.episodes) for each in await memory.sessions(**who)],
            "users": [each.user_id for each in await memory.users(namespace=tenant)],
            "facts": sorted((each.predicate, each.object) for each in await memory.facts.query(**who)),
            "believed once": sorted(each.object for each in await memory.facts.history(**who)),
            "cardinalities": await memory.facts.cardinalities(namespace=tenant),
            "summary": summary and (summary.text, summary.messages),
            "profile": profile and sorted(profile.traits),
            "learned": sorted((each.state, each.facts) for each in await memory.extraction(**who)),
            "spending": sorted({each.kind for each in await memory.spending(**who)}),
            "events": sorted({each.event for each in await memory.past_events(**who)}),
            "blocks": [(each.name, each.content) for each in await memory.blocks.list(**who)],
            "jobs": {user: await self._jobs(tenant, user) for user in ("ann", "cat", "dan")},
            "progress": (progress.pending_turns, progress.episodes, progress.embedded, progress.facts, progress.dead),
            "export": (
                len(taken.episodes),
                len(taken.facts),
                len(taken.assertions),
                len(taken.vectors),
                len(taken.extraction),
            ),
            "keys": [(each.name, each.revoked_at is None) for each in await memory.api_keys.list(namespace=tenant)],
            "webhooks": [(each.description, each.waiting, each.failed) for each in await self._webhooks(tenant)],
            "policy": policy and (policy.max_episodes, policy.keep_important),
            "trail": [(each.action, each.user_id) for each in await memory.audit.list(namespace=tenant)],
            "trails": [each.faults for each in await memory.audit.verify(namespace=tenant)],
            "dead": [each.reason_code for each in await memory.dead_letters.list(JobFilter(namespace=tenant))],
            "plans": [(each.state, dict(each.counts)) for each in await memory.replays.list(namespace=tenant)],
            "ready": (await memory.health()).is_ready,
        }

    async def _operates(self, tenant: str) -> Answers:
        memory = self.memory
        whose: Named = {"namespace": tenant}
        await memory.facts.set_cardinality("likes", "multi", **whose)
        kept, secret = await memory.api_keys.create("kept", **whose)
        dropped, _ = await memory.api_keys.create("dropped", **whose)
        hook = (await memory.webhooks.create(self.hook, description="told", **whose)).webhook
        gone = (await memory.webhooks.create(self.hook, description="removed", **whose)).webhook
        bounds: Named = {"max_age": timedelta(days=9), "max_episodes": 1, "archive": str(self.archive)}
        await memory.retention.set(keep_important=True, **bounds, **whose)
        found = await memory.api_keys.check(secret)
        return {
            "key": (found == kept, await memory.api_keys.any(), await memory.api_keys.revoke(dropped.id, **whose)),
            "hook": (await memory.webhooks.enable(hook.id, **whose), await memory.webhooks.delete(gone.id, **whose)),
            "recorded": (await memory.audit.record("read", user_id="ann", **whose)).action,
        }

    async def _talks(self, tenant: str) -> Answers:
        who = _of("ann", tenant)
        said = {"role": "user", "content": "I like fjords.", "metadata": {"a": 1}}
        first = await self.memory.remember(said, session_id="s", agent_id="a", idempotency_key="k", **who)
        await _done(first)
        await _done(await self.memory.remember("I live in Oslo.", session_id="t", accept="postgres", **who))
        await wait_until(lambda: self._is_idle(who), timeout=SECONDS, description="summaries and a profile are made")
        again = await self.memory.remember(said, session_id="s", agent_id="a", idempotency_key="k", **who)
        await again.stored(timeout=SECONDS)
        status = await self.memory.jobs.status(first.job_id, **who)
        assert status is not None
        return {"again": again.job_id == first.job_id, "status": (status.stored, status.embedded, status.extracted)}

    async def _edits(self, tenant: str) -> Answers:
        memory, who = self.memory, _of("ann", tenant)
        await memory.blocks.set("human", "short answers", **who)
        block = await memory.blocks.append("human", "in English", **who)
        await memory.blocks.set("away", "nothing", **who)
        told = await memory.facts.add("user", "likes", "tea", **who)
        await memory.facts.add("user", "likes", "tea", **who)
        taken = await memory.facts.add("user", "likes", "rye", **who)
        why = await memory.facts.why(told, **who)
        for text in ("Hello.", "Good night."):
            await _done(await memory.remember(text, **_of("eve", tenant)))
        kept = await memory.retention.run(namespace=tenant)
        return {
            "block": (block.version, await memory.blocks.delete("away", **who)),
            "fact": (told.object, why and why.fact.strength, await memory.facts.retract(taken, **who)),
            "retention": (kept.episodes, kept.users, kept.archived),
        }

    async def _fails(self, tenant: str) -> Answers:
        """Two letters: one comes back by a plan, after a look at what it would do; one is put aside."""
        memory, cat = self.memory, _of("cat", tenant)
        self.model.script.facts = {**FACTS, "I sing.": [{"operation": "nonsense"}]}
        await memory.remember("I sing.", session_id="s", save=("history", "facts"), **cat)
        sung = await self._dead(tenant, JobKind.EXTRACT)
        self.model.script.facts = FACTS
        groups = await memory.dead_letters.groups(JobFilter(namespace=tenant))
        letter = await memory.dead_letters.get(sung)
        plan = await memory.replays.create(
            JobFilter(ids=(sung,), namespace=tenant), NewPlan(name="again", reason="it may", actor="ops")
        )
        estimate = await memory.replays.estimate(plan.id)
        await memory.replays.dry_run(plan.id)
        await wait_until(lambda: self._has_shadow(plan), timeout=SECONDS, description="the shadow run")
        await memory.replays.record_access(plan.id, actor="ops")
        shadows = [(each.state, each.added) for each in await memory.replays.dry_run_results(plan.id)]
        await memory.replays.start(plan.id)
        await wait_until(lambda: self._ended(plan), timeout=SECONDS, description="the plan is done")
        await memory.remember(HOPELESS, session_id="s", **cat)
        aside = JobFilter(ids=(await self._dead(tenant, JobKind.STORE),))
        return {
            "groups": [(each.kind, each.reason_code, each.count) for each in groups],
            "letter": letter and (letter.job.state, len(letter.attempts)),
            "estimate": (estimate.items, estimate.model_calls, estimate.conflicts, estimate.refused),
            "shadows": shadows,
            "items": [(each.state, each.new_state) for each in await memory.replays.list_items(plan.id)],
            "discarded": await memory.dead_letters.discard(aside, note="no use", actor="ops"),
        }

    async def _takes_back(self, tenant: str) -> Answers:
        memory, dan = self.memory, _of("dan", tenant)
        receipt = await memory.remember("I ski.", session_id="s", save=("history", "facts"), **dan)
        await _done(receipt)
        looked = await memory.undo(*receipt.episode_ids, dry_run=True, **dan)
        undone = await memory.undo(*receipt.episode_ids, **dan)
        await _done(await memory.remember("I ski.", session_id="t", save=("history", "facts"), **dan))
        of_session = await memory.forget(session_id="t", **dan)
        return {
            "undone": (len(looked.retracted), len(undone.retracted), undone.dry_run),
            "forgotten session": dict(of_session.rows),
            "forgotten": dict((await memory.forget(**dan)).rows),
            "left": len(await memory.history(**dan)),
        }

    async def _seals(self, tenant: str) -> Answers:
        encrypted = await self.memory.encryption.encrypt(namespace=tenant, spread_seconds=0.1)
        rotated = await self.memory.encryption.rotate(namespace=tenant, spread_seconds=0.1)
        return {"sealed": (encrypted.rows > 0, rotated.rows > 0, rotated.key_id != encrypted.key_id)}

    async def _jobs(self, tenant: str, user: str) -> list[tuple[JobKind, JobState, int]]:
        found = await self.memory.jobs.list(user_id=user, namespace=tenant)
        return sorted({(each.kind, each.state, each.attempts) for each in found})

    async def _webhooks(self, tenant: str) -> list[Webhook]:
        """Once everything is delivered."""

        async def delivered() -> list[Webhook]:
            found = await self.memory.webhooks.list(namespace=tenant)
            return [] if any(each.waiting for each in found) else found

        return await wait_until(delivered, timeout=SECONDS, description="webhooks have taken all")

    async def _is_idle(self, who: Named) -> bool:
        progress = await self.memory.progress(**who)
        return not progress.jobs and not progress.later

    async def _dead(self, tenant: str, kind: JobKind) -> JobId:
        async def found() -> JobId | None:
            letters = await self.memory.dead_letters.list(JobFilter(namespace=tenant, kinds=(kind,)))
            return letters[0].id if letters else None

        job_id = await wait_until(found, timeout=SECONDS, description=f"a dead letter of {kind}")
        assert job_id is not None
        return job_id

    async def _has_shadow(self, plan: ReplayPlan) -> bool:
        return [each.state for each in await self.memory.replays.dry_run_results(plan.id)] == [JobState.DONE]

    async def _ended(self, plan: ReplayPlan) -> bool:
        found = await self.memory.replays.get(plan.id)
        return found is not None and found.state is PlanState.DONE


def _of(user: str, tenant: str) -> Named:
    return {"user_id": user, "namespace": tenant}


async def _done(receipt: Receipt) -> None:
    await receipt.stored(timeout=SECONDS)
    await receipt.embedded(timeout=SECONDS)
    await receipt.extracted(timeout=SECONDS)
