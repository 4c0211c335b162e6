"""Health of a deployment as one memory sees it: store, replicas, Redis, spool and backlog."""

import asyncio
import shlex
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, TypeVar

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.ledger.protocol import Backlog
from aftermind.llm.factory import find_provider_pause
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderState
from aftermind.outbox.spool import damaged_files, foreign_files, stranded_files
from aftermind.outbox.spool_deployment import Deployment, describe_target
from aftermind.outbox.spool_segment import DAMAGED
from aftermind.settings import ModelBudget, Settings
from aftermind.types import JobKind, JobState, Scope
from aftermind.types.job import MODEL_KINDS, to_dollars
from aftermind.types.job_admin import JobPause
from aftermind.wire import queues
from aftermind.wire.pending import Pending, PendingBacklog
from aftermind.wire.pending_types import PendingLimits
from aftermind.wire.redis.client import run_all
from aftermind.wire.redis_keys import Keys

OVERDUE_SECONDS = 120.0  # a doorbell takes milliseconds, and the reconciler sends it again within seconds
DRAIN_POLL_SECONDS = 0.02
FIRST_READ_SECONDS = 1.0  # of a drain with a shorter timeout
CHECK_TIMEOUT_SECONDS = 2.0  # for each component; all are checked concurrently
JOBS = "jobs"  # the component without which unfinished work cannot be counted
CONDENSING = frozenset({JobKind.SUMMARISE, JobKind.PROFILE})

T = TypeVar("T")
State = Literal["ok", "degraded", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component. `needed`: without it no question can be answered whole. `is_outage`: it does not answer; else a
    component that is down answers, and its schema or the rights of the login are wrong.
    """

    name: str
    state: State
    detail: str = ""
    needed: bool = True
    is_outage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Unfinished work of one kind; `age_seconds` is how long the oldest could have run already.

    Jobs that an operator has paused, and those of models while a provider is paused, are runnable, but have no age: no
    worker may claim them.
    """

    kind: str
    runnable: int = 0
    running: int = 0
    waiting: int = 0
    dead: int = 0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica as it was found a moment ago. `lag_seconds` None: it has never answered."""

    name: str
    serving: bool
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Work outside the ledger: turns and bytes pending in Redis, bells by queue, bytes spooled on this host.

    Without `is_known` Redis does not answer, and turns, bytes and bells are 0. `spool_damaged` counts the damaged
    places of the spool whose bytes are kept as `.damaged` files.
    """

    turns: int = 0
    size_bytes: int = 0
    is_known: bool = True
    bells: Mapping[str, int] = field(default_factory=dict)
    spooled_bytes: int = 0
    spool_damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Components, and unfinished work by kind; without a database there is no information about work.

    `waiting` is None if Redis does not answer, or there is none; `paused` are providers with their remaining pause in
    seconds. `refused_texts` counts texts that this process did not decrypt since it started, `malformed_values`
    watermarks of Redis that it could not read.
    """

    parts: tuple[Component, ...]
    work: tuple[Work, ...] = ()
    replicas: tuple[Replica, ...] = ()
    waiting: Waiting | None = None
    paused: Mapping[str, float] = field(default_factory=dict)
    refused_texts: int = 0
    malformed_values: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether everything that an answer needs is there."""
        return all(part.state != "down" for part in self.parts if part.needed)

    @property
    def can_serve(self) -> bool:
        """Whether this process can answer, perhaps degraded: one place of memory is left, and none is set up wrongly.

        An outage of the primary or of Redis concerns all processes: none of them answers better than this one.
        """
        wrong = [part for part in self.parts if part.needed and part.state == "down" and not part.is_outage]
        places = [part for part in self.parts if part.name.partition(" ")[0] in ("store", "replica")]
        redis = [part for part in self.parts if part.name == "redis"]  # a full one is read
        return not wrong and any([*(part.state == "ok" for part in places), *(part.state != "down" for part in redis)])

    @property
    def overdue(self) -> tuple[Work, ...]:
        """Overdue jobs: runnable for too long, because workers are down or stuck. Paused jobs are not."""
        return tuple(row for row in self.work if row.age_seconds > OVERDUE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a user's turns have come. `jobs` are unfinished follow-ups of turns; `dead` are dead letters.

    `later`: summaries and profiles that are to be brought up to date once the user has been quiet for a while. A turn
    can be recalled, with what was learnt from it, without them.
    """

    pending_turns: int
    episodes: int
    embedded: int
    facts: int
    jobs: int
    dead: int
    later: int = 0


def spooled_bytes(settings: Settings, deployment: Deployment | None = None) -> int:
    """Bytes of unsent turns in this host's spool, without what is kept of damaged ones, or is for another deployment.

    A file that is drained during the call counts as empty.
    """
    total, foreign = 0, set(foreign_files(settings.spool_dir, deployment))
    for path in settings.spool_dir.rglob("*"):
        with suppress(FileNotFoundError):
            is_unsent = path.is_file() and path.suffix != DAMAGED and path not in foreign
            total += path.stat().st_size if is_unsent else 0
    return total


def damaged_spool(settings: Settings) -> str:
    """Message about damaged bytes in this host's spool; "" if there are none."""
    count = len(damaged_files(settings.spool_dir))
    if not count:
        return ""
    return f"{count} damaged {'place' if count == 1 else 'places'}, kept as {settings.spool_dir}/*{DAMAGED}"


def foreign_spool(settings: Settings, deployment: Deployment | None) -> str:
    """Message about spool files for another deployment; "" if there are none."""
    found = stranded_files(settings.spool_dir, deployment)
    return "; ".join(f"{path} is for another deployment: {describe_target(path)}" for path in found)


async def health(parts: Parts) -> Health:
    """Check all components concurrently, each for at most `CHECK_TIMEOUT_SECONDS`."""
    async with asyncio.TaskGroup() as group:
        pending = group.create_task(_answered(_pending(parts)))
        gate = group.create_task(_answered(parts.gate.states()))
        spooled = group.create_task(_answered(asyncio.to_thread(spooled_bytes, parts.settings, parts.deployment)))
        looks = [_check("store", lambda: _store(parts))]
        if parts.redis is not None:
            looks.append(_check("redis", lambda: _redis(parts)))
            if parts.operations is not parts.db:
                looks.append(_check(JOBS, lambda: _jobs(parts), needed=False))
            looks.append(_check("spool", lambda: _spool(parts, spooled), needed=False))
            looks.append(_check("models", lambda: _models(gate), needed=False))
            looks.append(_check("encryption", lambda: _encryption(parts), needed=False))
        looks.append(_check("vectors", lambda: _vectors(parts), needed=False))
        looks.append(_check("webhooks", lambda: _webhooks(parts), needed=False))
        if parts.settings.has_budgets:
            looks.append(_check("budgets", lambda: _budgets(parts), needed=False))
        looks.append(_check("pauses", lambda: _pauses(parts), needed=False))
        seen, work, waiting, _ = await asyncio.gather(
            asyncio.gather(*looks),
            _work(parts, pending, gate),
            _waiting(parts, pending, spooled),
            parts.routing.probe(),
        )
    states, lags = parts.routing.states(), parts.routing.lags()
    replicas = [Replica(name=each, serving=states[each] == "serving", lag_seconds=lags.get(each)) for each in states]
    return Health(
        parts=(*seen, *(_replica(name, state) for name, state in states.items())),
        work=tuple(work),
        replicas=tuple(replicas),
        waiting=waiting,
        paused={each.provider: each.wait_seconds for each in gate.result() or () if each.why is not None},
        refused_texts=parts.refused_texts(),
        malformed_values=0 if parts.pending is None else parts.pending.malformed,
    )


async def progress(parts: Parts, owner: Scope) -> Progress:
    """How far an owner's turns have come. Raises `StoreUnavailable`; turns in Redis count 0 where it is away."""
    waiting = len(await parts.outboxes.local_turns(owner))
    if parts.pending is not None:
        waiting += (await parts.pending.read(owner, limit=0)).total
    async with parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
        counts = await parts.store.counts(tx, owner)
    unfinished = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)
    jobs = await parts.ledger.jobs(owner=owner, states=(*unfinished, JobState.DEAD), limit=10_000)
    dead = sum(job.state is JobState.DEAD for job in jobs)
    later = sum(job.kind in CONDENSING and job.state is not JobState.DEAD for job in jobs)
    return Progress(
        pending_turns=waiting,
        episodes=counts.get("episodes", 0),
        embedded=counts.get("embedded", 0),
        facts=counts.get("facts", 0),
        jobs=len(jobs) - dead - later,
        dead=dead,
        later=later,
    )


async def drain(parts: Parts, owner: Scope, *, timeout_seconds: float) -> None:
    """Wait until an owner has no pending turns and no unfinished jobs. Raises `DrainTimeout`, `StoreUnavailable`."""
    started, first = asyncio.get_running_loop().time(), max(timeout_seconds, FIRST_READ_SECONDS)
    try:
        async with asyncio.timeout(first):
            seen = await progress(parts, owner)
    except TimeoutError as exc:
        raise errors.StoreUnavailable("drain", f"no answer within {first:g} s") from exc
    try:
        async with asyncio.timeout_at(started + timeout_seconds):
            while seen.pending_turns or seen.jobs:
                await asyncio.sleep(DRAIN_POLL_SECONDS)
                seen = await progress(parts, owner)
    except TimeoutError as exc:
        pending = {"pending_turns": seen.pending_turns, "jobs": seen.jobs}
        raise errors.DrainTimeout(owner.user_id, timeout_seconds, **pending) from exc


async def _check(name: str, ask: Callable[[], Awaitable[str]], *, needed: bool = True) -> Component:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            detail = await ask()
    except (TimeoutError, errors.AftermindError) as exc:
        why = str(exc) or f"no answer within {CHECK_TIMEOUT_SECONDS:g} s"
        is_outage = isinstance(exc, TimeoutError | errors.Unavailable)
        return Component(name=name, state="down", detail=why, needed=needed, is_outage=is_outage)
    state: State = "degraded" if detail.startswith("!") else "ok"
    return Component(name=name, state=state, detail=detail.removeprefix("!"), needed=needed)


async def _store(parts: Parts) -> str:
    await parts.check_schema()
    return "answers, schema up to date"


async def _jobs(parts: Parts) -> str:
    """Whether the login of `AFTERMIND_RELAY_URL` reads the jobs of every tenant."""
    await parts.operations.watermark()
    return "answers"


async def _redis(parts: Parts) -> str:
    assert parts.redis is not None
    await run_all(each.call("PING") for each in parts.redis.shards)
    if parts.pending is not None:
        limits = PendingLimits.from_settings(parts.settings)
        try:  # no turn at all: Redis refuses the call where it would refuse a turn
            await run_all(each.accept([], limits=limits) for each in parts.pending.shards)
        except errors.RedisUnavailable as exc:
            why = exc.why.removesuffix(".")
            return f"!answers, but refuses turns: {why}. Until it accepts them, they wait in the spool or in Postgres."
    return "answers"


async def _answered(asked: Awaitable[T]) -> T | None:
    """A value that several checks need, requested once; None without an answer in time."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            return await asked
    except (TimeoutError, OSError, errors.AftermindError):
        return None


async def _pending(parts: Parts) -> PendingBacklog | None:
    return None if parts.pending is None else await parts.pending.backlog()


async def _spool(parts: Parts, spooled: asyncio.Task[int | None]) -> str:
    waiting = await asyncio.shield(spooled)
    if waiting is None:
        raise TimeoutError
    found = [f"{waiting:,} bytes of turns wait for Redis"] if waiting else []
    for message in (
        await asyncio.to_thread(damaged_spool, parts.settings),
        await asyncio.to_thread(foreign_spool, parts.settings, parts.deployment),
    ):
        found += [message] if message else []
    return f"!{'; '.join(found)}" if found else "empty"


async def _models(gate: asyncio.Task[list[ProviderState] | None]) -> str:
    """The reasons of paused providers, shared by all processes; jobs of that kind wait."""
    states = await asyncio.shield(gate)
    if states is None:
        return "unknown: Redis does not answer"
    paused = [each for each in states if each.why is not None]
    if not paused:
        return "no provider is paused"
    pauses = (f"{each.provider} is {each.pause}" for each in paused)
    return f"!{'; '.join(pauses)}. Its jobs wait."


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentBudget:
    """A namespace that has reached a limit of its model budget of today (UTC). `tokens` are without embeddings."""

    namespace: str
    budget: ModelBudget
    tokens: int
    cost_usd: float

    def holds(self, kind: JobKind) -> bool:
        """Whether jobs of this kind wait for it. Embeddings are in the budget of dollars alone."""
        tokens = 0 if kind is JobKind.EMBED else self.tokens
        return kind in MODEL_KINDS and self.budget.reached_limit(tokens=tokens, usd=self.cost_usd) is not None

    def __str__(self) -> str:
        tokens, usd = self.budget.tokens_per_day, self.budget.usd_per_day
        of_tokens = f"{self.tokens:,} of {tokens:,} tokens" if tokens else ""
        used = ", ".join(filter(None, (of_tokens, f"{to_dollars(self.cost_usd)} of {to_dollars(usd)}" if usd else "")))
        return f"{self.namespace} has used its budget of today ({used}); its jobs of models wait"


async def spent_budgets(parts: Parts, namespace: str | None = None) -> list[SpentBudget]:
    """Namespaces that have used their model budget of today, as far as the role can see, or this one.

    Raises `StoreUnavailable`.
    """
    if not parts.settings.has_budgets:
        return []
    tokens, spent = Counter[str](), defaultdict[str, float](float)
    async with parts.operations.transaction(namespace=parts.operations_namespace, read_only=True) as tx:
        for row in await parts.job_operations.costs(tx, namespace, since=datetime.now(UTC).date()):
            tokens[row.namespace] += 0 if row.kind is JobKind.EMBED else row.tokens_in + row.tokens_out
            spent[row.namespace] += row.cost_usd
    return [
        SpentBudget(namespace=name, budget=budget, tokens=tokens[name], cost_usd=spent[name])
        for name in sorted(tokens)
        if (budget := parts.settings.budget_for(name)).reached_limit(tokens=tokens[name], usd=spent[name])
    ]


async def _budgets(parts: Parts) -> str:
    """Without names of tenants: /readyz asks for no key."""
    count = len(await spent_budgets(parts))
    if not count:
        return "none is used up"
    who = "1 namespace has used its budget" if count == 1 else f"{count:,} namespaces have used their budgets"
    return f"!{who} of today; their jobs of models wait: `aftermind doctor` names them"


async def _vectors(parts: Parts) -> str:
    """Whether stored vectors are of the configured embedder, and whether a re-embedding is running."""
    if parts.embedders is None:
        return "one embedder"
    stored, configured = await parts.embedders()
    if configured is None:
        return "not compared: no embedder is configured"
    if stored is None:
        return "none is stored yet"
    if configured not in stored:
        return f"!{errors.EmbedderMismatch(stored.active, configured)} Recall is lexical only."
    if stored.standby is not None:
        return f"{stored.active} serves; {stored.standby} is on standby: `aftermind reembed status` shows the progress"
    return f"{stored.active} serves"


async def _encryption(parts: Parts) -> str:
    """Texts that this process has refused: the database was changed by other means."""
    count = parts.refused_texts()
    if not count:
        return "no text was refused"
    return f"!{count} texts were changed, replaced or not encrypted: the log names table and row"


async def _webhooks(parts: Parts) -> str:
    """Webhooks that are disabled or fail, of every tenant that the role can read."""
    async with parts.operations.transaction(namespace=parts.operations_namespace, read_only=True) as tx:
        disabled, failing = await parts.webhook_rows.unwell(tx, parts.operations_namespace)
    if not disabled and not failing:
        return "none fails"
    command = "aftermind webhooks list" + ("" if parts.operations_namespace else " --namespace NAME")
    return f"!{disabled} disabled, {failing} failing: `{command}` shows the reason. Their events wait."


async def read_pauses(parts: Parts) -> list[JobPause]:
    """Operators' pauses, of every tenant that the role can read. Raises `StoreUnavailable`."""
    async with parts.operations.transaction(namespace=parts.operations_namespace, read_only=True) as tx:
        return await parts.job_operations.pauses(tx)


def pauses_by_queue(pauses: Sequence[JobPause]) -> list[tuple[str, JobPause]]:
    """What is paused (a kind, a queue or `all`), and its pause: those of all kinds of a queue that one operator made
    for one reason are one, as `aftermind jobs pause --queue` makes them.
    """
    found: list[tuple[str, JobPause]] = []
    for each in pauses:
        origin = (each.namespace, each.reason, each.actor)
        alike = {one.kind for one in pauses if (one.namespace, one.reason, one.actor) == origin}
        queue = None if each.kind is None else queues.QUEUE_OF[each.kind]
        kinds = [kind for kind, name in queues.QUEUE_OF.items() if name == queue]
        if queue is None or len(kinds) == 1 or not alike.issuperset(kinds):
            found.append((each.kind or "all", each))
        elif each.kind == kinds[0]:
            found.append((queue, each))
    return found


def resume_command(name: str, pause: JobPause) -> str:
    """The command that ends a pause of this kind or queue."""
    option = "" if name == "all" else f" --queue {name}" if name in queues.QUEUES else f" --kind {name}"
    return f"aftermind jobs resume{option}" + (
        f" --namespace {shlex.quote(pause.namespace)}" if pause.namespace else ""
    )


async def _pauses(parts: Parts) -> str:
    """Without names of tenants: /readyz asks for no key."""
    pauses = pauses_by_queue(await read_pauses(parts))
    found = [
        f"{name} jobs are paused: `{resume_command(name, each)}` ends it"
        for name, each in pauses
        if each.namespace is None
    ]
    if of_tenants := len(pauses) - len(found):
        count = f"{of_tenants} {'pause' if of_tenants == 1 else 'pauses'} of single namespaces"
        found.append(f"{count}: `aftermind jobs pauses` lists them")
    return f"!{'; '.join(found)}" if found else "no jobs are paused"


def _replica(name: str, state: str) -> Component:
    well = state == "serving"
    return Component(name=f"replica {name}", state="ok" if well else "degraded", detail=state, needed=False)


async def _waiting(
    parts: Parts, pending: asyncio.Task[PendingBacklog | None], spooled: asyncio.Task[int | None]
) -> Waiting | None:
    if parts.redis is None:
        return None
    keys = Keys(parts.settings.redis_prefix)
    listed = queues.QUEUES if len(parts.redis.shards) == 1 else ()  # of a Redis Cluster, the broker is another server
    bells: dict[str, int] = {}
    with suppress(TimeoutError, errors.AftermindError):  # the spool is asked for anyway: it fills while Redis is away
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            bells = {name: int(await parts.redis.call("LLEN", keys.queue(name))) for name in listed}
    backlog, size = await pending, await spooled
    damaged = await asyncio.to_thread(damaged_files, parts.settings.spool_dir)
    return Waiting(
        turns=0 if backlog is None else backlog.turns,
        size_bytes=0 if backlog is None else backlog.size_bytes,
        is_known=backlog is not None,
        bells=bells,
        spooled_bytes=size or 0,
        spool_damaged=len(damaged),
    )


async def _work(
    parts: Parts,
    pending: asyncio.Task[PendingBacklog | None],
    gate: asyncio.Task[list[ProviderState] | None],
) -> list[Work]:
    rows, waiting = await _answered(parts.ledger.backlog()), await pending
    states = await gate or ()
    pauses = await _answered(read_pauses(parts)) or ()
    if rows is None:
        return []  # the components already report that the database is down
    found = [_to_work(row) for row in rows]
    found = [
        replace(row, age_seconds=0.0) if find_provider_pause(row.kind, parts.settings, states) else row for row in found
    ]
    if waiting is not None:
        age = await pending_age(parts.pending, waiting, pauses)
        found = _with_pending(found, runnable=waiting.runnable + waiting.handed_back, turns=waiting.turns, age=age)
    return [row for row in found if row.runnable or row.running or row.waiting or row.dead]


async def pending_age(pending: Pending | None, waiting: PendingBacklog, pauses: Sequence[JobPause]) -> float:
    """For how many seconds the oldest turn in Redis could have been stored, or was handed back; 0 if all are paused."""
    namespaces = {each.namespace for each in pauses if each.kind in (None, JobKind.STORE)}
    if None in namespaces:
        return 0.0
    if not namespaces or pending is None:
        return (waiting.oldest_age if waiting.runnable else waiting.claimable_age).total_seconds()
    named = [each for each in namespaces if each is not None]
    return (await pending.backlog(except_namespaces=named)).claimable_age.total_seconds()


def _to_work(row: Backlog) -> Work:
    return Work(
        kind=row.kind,
        runnable=row.runnable,
        running=row.running,
        waiting=row.waiting,
        dead=row.dead,
        age_seconds=row.oldest_wait.total_seconds() if row.oldest_wait else 0.0,
    )


def _with_pending(rows: list[Work], *, runnable: int, turns: int, age: float) -> list[Work]:
    """Turns that wait in Redis are store jobs too."""
    stored = next((row for row in rows if row.kind == JobKind.STORE), Work(kind=JobKind.STORE))
    merged = replace(
        stored,
        runnable=stored.runnable + runnable,
        running=stored.running + turns - runnable,
        age_seconds=max(stored.age_seconds, age),
    )
    return [merged, *(row for row in rows if row.kind != JobKind.STORE)]
