"""What the doctor looks at: one function a component, each answering findings and never raising for what is sick."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import wraps
from typing import ParamSpec

from aftermind import errors
from aftermind.cli import canary
from aftermind.db import migrate, probe
from aftermind.faces import witnesses
from aftermind.faces.addresses import Addresses
from aftermind.faces.health import damaged_spool, spooled_bytes
from aftermind.faces.wiring import open_parts
from aftermind.llm import resolver
from aftermind.llm.base import identity_of
from aftermind.llm.gate import ProviderState
from aftermind.settings import Settings
from aftermind.wire.connection import RedisLink, unavailable
from aftermind.wire.keys import Keys

P = ParamSpec("P")

CLOCKS_APART = 2.0  # seconds: order within a session is kept by Redis, but what people read is our clock
FREE_DISK = 1024**3
LOOK_SECONDS = 10.0
PAUSED = "Correct the key (OPENAI_API_KEY, in the workers' environment), or the budget, or wait for the provider."
ROLE_REMEDY = "Connect as a member of aftermind_app (agents) or aftermind_relay (workers): see docs/security.md."
OLD_WORK = 60.0  # seconds that runnable work may lie: a bell takes milliseconds


class Verdict(Enum):
    """How serious a finding is."""

    GOOD = auto()
    WARNING = auto()
    BAD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, what was seen, and how to mend it."""

    what: str
    seen: str
    verdict: Verdict = Verdict.GOOD
    remedy: str = ""


Look = Callable[P, Awaitable[list[Finding]]]


def _looking(what: str, remedy: str) -> Callable[[Look[P]], Look[P]]:
    """What does not answer is a finding too."""

    def decorate(look: Look[P]) -> Look[P]:
        @wraps(look)
        async def looked(*args: P.args, **kwargs: P.kwargs) -> list[Finding]:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await look(*args, **kwargs)
            except (errors.AftermindError, TimeoutError) as exc:
                why = str(exc) or f"no answer within {LOOK_SECONDS:g} s"
                return [Finding(what=what, seen=why, verdict=Verdict.BAD, remedy=remedy)]

        return looked

    return decorate


@_looking("Postgres", "Start it (`aftermind up` for the embedded one), or correct AFTERMIND_DATABASE_URL.")
async def postgres(url: str, settings: Settings) -> list[Finding]:
    """The primary: whether it answers, is a primary, has our schema, and agrees with our clock."""
    seen = await probe.node(url)
    findings = [Finding(what="Postgres", seen=f"version {seen.version} answers in {seen.round_trip_ms:.1f} ms")]
    if seen.in_recovery:
        remedy = "Point AFTERMIND_DATABASE_URL to the primary; replicas go to AFTERMIND_REPLICA_URLS."
        findings.append(Finding(what="Postgres", seen="it is a replica", verdict=Verdict.BAD, remedy=remedy))
    findings.append(_clock("Postgres", seen.clock_ahead_seconds))
    findings.append(await _schema(url, settings))
    findings += await _isolation(url)
    if seen.fsync == "off" or seen.synchronous_commit == "off":
        remedy = "Set fsync=on and synchronous_commit=on: a commit that is lost in a crash was promised to somebody."
        said = f"fsync={seen.fsync}, synchronous_commit={seen.synchronous_commit}"
        findings.append(Finding(what="Postgres", seen=said, verdict=Verdict.WARNING, remedy=remedy))
    return findings


@_looking("replica", "Start it, or take it out of AFTERMIND_REPLICA_URLS; recall reads the primary meanwhile.")
async def replica(url: str, primary: str, settings: Settings) -> list[Finding]:
    """A replica: whether it follows this primary, and how far behind it is."""
    seen, leader = await asyncio.gather(probe.node(url), probe.node(primary))
    what = f"replica {seen.name}"
    if not seen.in_recovery:
        remedy = "It was promoted, or never was a replica. Rebuild it with pg_basebackup, or name it as the primary."
        return [Finding(what=what, seen="it is no replica", verdict=Verdict.BAD, remedy=remedy)]
    if seen.system != leader.system:
        remedy = "It follows another cluster. Rebuild it from this primary."
        return [Finding(what=what, seen="it belongs to another primary", verdict=Verdict.BAD, remedy=remedy)]
    behind = max(0, leader.lsn - seen.lsn)
    if behind and seen.lag_seconds > settings.replica_max_lag_seconds:
        remedy = "Look at its disk and network, and for long queries on it; recall leaves it until it has caught up."
        said = f"{seen.lag_seconds:.0f} s and {behind / 1024**2:.1f} MB behind"
        return [Finding(what=what, seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return [Finding(what=what, seen=f"follows, {behind:,} bytes behind"), _clock(what, seen.clock_ahead_seconds)]


async def no_replica() -> list[Finding]:
    """Said where none is named."""
    remedy = "Every recall reads the primary. Name streaming replicas in AFTERMIND_REPLICA_URLS to spread the load."
    return [Finding(what="replicas", seen="none", verdict=Verdict.GOOD, remedy=remedy)]


@_looking("Redis", "Start it (`aftermind up` for the embedded one), or correct AFTERMIND_REDIS_URL.")
async def redis(url: str, settings: Settings) -> list[Finding]:
    """Redis: whether it answers, keeps what it is given, and never evicts."""
    link = RedisLink(url, timeout=2.0, name="aftermind-doctor")
    try:
        started = time.perf_counter()
        await link.call("PING")
        took = (time.perf_counter() - started) * 1000
        with unavailable():
            client = link.client()
            server, memory = await client.info("server"), await client.info("memory")
            persistence, clock = await client.info("persistence"), await client.time()
        version = server.get("valkey_version") or server.get("redis_version")
        findings = [Finding(what="Redis", seen=f"version {version} answers in {took:.1f} ms")]
        findings.append(_clock("Redis", clock[0] + clock[1] / 1e6 - time.time()))
        findings += await _durability(link, persistence)
        findings += await _eviction(link, memory)
        return findings
    finally:
        await link.close()


@_looking("work", "See `aftermind status`, and the logs of workers and reconciler.")
async def work(found: Addresses, settings: Settings) -> list[Finding]:
    """What waits to be done, and whether anybody does it."""
    parts = open_parts(found, settings)
    try:
        findings = []
        if parts.pending is not None:
            backlog = await parts.pending.backlog()
            age = backlog.oldest_age.total_seconds()
            findings.append(_backlog("pending turns", backlog.turns, age, "store"))
        now = time.time()
        for row in await parts.ledger.backlog():
            age = now - row.oldest_runnable_at.timestamp() if row.oldest_runnable_at else 0.0
            if row.runnable:
                findings.append(_backlog(f"{row.kind} jobs", row.runnable, age, str(row.kind)))
            if row.dead:
                remedy = "Each is kept whole, with its reason. Mend the cause, then replay them."
                said = f"{row.dead:,} dead letters"
                findings.append(Finding(what=f"{row.kind} jobs", seen=said, verdict=Verdict.WARNING, remedy=remedy))
        findings += [
            Finding(what=f"provider {each.provider}", seen=_paused(each), verdict=Verdict.BAD, remedy=PAUSED)
            for each in await parts.gate.states()
            if each.why is not None
        ]
        return findings or [Finding(what="work", seen="nothing waits")]
    finally:
        await parts.close()


@_looking("workers", "See `aftermind status`, and the logs of the workers.")
async def workers(url: str, settings: Settings) -> list[Finding]:
    """Whether a bell is taken from each queue: the canary."""
    link = RedisLink(url, timeout=2.0, name="aftermind-canary")
    try:
        waits = await canary.sing(link, Keys(settings.redis_prefix))
    finally:
        await link.close()
    return [_sung(queue, wait) for queue, wait in waits.items()]


async def disk(settings: Settings) -> list[Finding]:
    """Room for the spool and the embedded stack."""
    folder = settings.state_dir.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < FREE_DISK:
        remedy = "Free some space: Postgres and Redis stop writing on a full disk, and then nothing can be remembered."
        said = f"{free / 1024**3:.2f} GiB free at {folder}"
        return [Finding(what="disk", seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return [Finding(what="disk", seen=f"{free / 1024**3:.0f} GiB free at {folder}")]


async def spool(settings: Settings) -> list[Finding]:
    """Turns on this host's disk because Redis was away, and what is kept of damaged ones."""
    said = await asyncio.to_thread(damaged_spool, settings)
    remedy = "Check the disk. The log names file and offset; each file holds one damaged place. Delete them afterwards."
    damaged = [Finding(what="spool", seen=said, verdict=Verdict.BAD, remedy=remedy)] if said else []
    return [*damaged, *_damaged_witnesses(settings), *_unsent(settings)]


def _damaged_witnesses(settings: Settings) -> list[Finding]:
    found = sorted((settings.state_dir / "audit").glob(f"*{witnesses.DAMAGED}"))
    remedy = "Check the disk, run `aftermind audit verify` (it still reads Redis's witness), then delete the file."
    return [
        Finding(what="audit witness", seen=f"damaged: {each}", verdict=Verdict.BAD, remedy=remedy) for each in found
    ]


def _unsent(settings: Settings) -> list[Finding]:
    if settings.spool_max_bytes == 0:
        remedy = "While Redis is away remember() raises. Set AFTERMIND_SPOOL_MAX_BYTES to keep turns on disk instead."
        return [Finding(what="spool", seen="switched off", verdict=Verdict.WARNING, remedy=remedy)]
    size = spooled_bytes(settings)
    if size:
        remedy = "They are sent when Redis answers again; any process with this state folder does it."
        said = f"{size:,} bytes of turns wait in {settings.state_dir / 'spool'}"
        return [Finding(what="spool", seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return [Finding(what="spool", seen="empty")]


@_looking("models", "Correct AFTERMIND_EMBEDDER, or install the extra that it names.")
async def models(settings: Settings) -> list[Finding]:
    """Which models will be used."""
    embedder, extractor = resolver.embedder(settings), resolver.extractor(settings)
    named = f"embedder {embedder.name if embedder else 'off'}, extractor {extractor.name if extractor else 'off'}"
    offline = settings.openai_api_key is None and settings.embedder == "auto"
    remedy = "Offline rules and hashing: set OPENAI_API_KEY for better recall and facts." if offline else ""
    return [Finding(what="models", seen=named, remedy=remedy)]


async def _schema(url: str, settings: Settings) -> Finding:
    try:
        await migrate.check(url, allow_owner=settings.allow_owner)
    except errors.UnboundRole as exc:
        return Finding(what="role", seen=str(exc), verdict=Verdict.BAD, remedy=ROLE_REMEDY)
    except errors.Conflict as exc:
        return Finding(what="schema", seen=str(exc), verdict=Verdict.BAD, remedy="Run `aftermind migrate`.")
    return Finding(what="schema", seen="up to date")


async def _isolation(url: str) -> list[Finding]:
    """Whether row-level security is forced on every table of tenants, and binds this role."""
    seen = await probe.isolation(url)
    if seen.open_tables:
        said = f"row-level security is not forced on {', '.join(seen.open_tables)}"
        remedy = "Run `aftermind migrate`, which forces it: until then an owner or a mistake sees every tenant."
        return [Finding(what="tenants", seen=said, verdict=Verdict.BAD, remedy=remedy)]
    if seen.is_unbound:
        said = f"role {seen.role} is not bound by row-level security; AFTERMIND_ALLOW_OWNER takes it"
        return [Finding(what="role", seen=said, verdict=Verdict.WARNING, remedy=ROLE_REMEDY)]
    return [Finding(what="tenants", seen=f"row-level security is forced, and binds role {seen.role}")]


@_looking("audit keys", "See `aftermind audit verify`.")
async def audit_keys(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether every process writes audit trails with a key that this one has too."""
    parts = open_parts(found, settings)
    try:
        if parts.trail is None or parts.work is None:
            return []
        async with parts.work.transaction(read_only=True) as tx:
            used = await parts.trail.used_keys(tx)
        if not used:
            return [Finding(what="audit keys", seen="no trail yet")]
        missing = {name: key for name, key in used.items() if key not in parts.trail.keys.named()}
        if missing:
            said = f"trails of {', '.join(sorted(missing))} were last written with another key"
            remedy = "Give every process the same AFTERMIND_AUDIT_KEY (or _FILE): the newest first, former ones behind."
            return [Finding(what="audit keys", seen=said, verdict=Verdict.BAD, remedy=remedy)]
        return [Finding(what="audit keys", seen=f"{len(used):,} trails were last written with a key of this process")]
    finally:
        await parts.close()


@_looking("vectors", "See `aftermind reembed status`.")
async def vectors(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether stored vectors are of the configured embedder, how many episodes have one, and a running re-embedding."""
    from aftermind.faces.reembedding import Reembeddings  # SQLAlchemy is for those who use Postgres

    seen = await Reembeddings(found, settings).status()
    stored, counts = seen.reembedding.stored, seen.counts
    share = f"{counts.active:,} of {counts.episodes:,} episodes" if counts.episodes else "no episodes yet"
    findings = [Finding(what="vectors", seen=f"{stored.active} serves: {share}")]
    embedder = resolver.embedder(settings)
    configured = None if embedder is None else await asyncio.to_thread(identity_of, embedder)
    if configured is not None and configured not in stored:
        mismatch = str(errors.EmbedderMismatch(stored.active, configured))
        remedy = (
            "Recall searches words alone until `aftermind reembed start` and `aftermind reembed cutover` have run."
            if counts.active
            else "Run `aftermind migrate`: there are no vectors yet, so the configured embedder is adopted."
        )
        findings.append(Finding(what="vectors", seen=mismatch, verdict=Verdict.BAD, remedy=remedy))
    if stored.standby is not None:
        role = "kept for a rollback" if seen.reembedding.is_cut_over else "re-embedding under way"
        said = f"{stored.standby} stands by ({role}): {counts.standby:,} of {counts.episodes:,} episodes"
        findings.append(Finding(what="vectors", seen=said, remedy="`aftermind reembed status` shows the progress."))
    if seen.steps.dead:
        said, remedy = f"{seen.steps.dead:,} steps of a re-embedding are dead letters", "Replay: `aftermind dead ls`."
        findings.append(Finding(what="vectors", seen=said, verdict=Verdict.WARNING, remedy=remedy))
    return findings


async def _durability(link: RedisLink, persistence: dict[str, object]) -> list[Finding]:
    if not persistence.get("aof_enabled"):
        remedy = "CONFIG SET appendonly yes, and in its configuration file: else a restart loses every pending turn."
        return [Finding(what="Redis", seen="no append-only file", verdict=Verdict.BAD, remedy=remedy)]
    policy = await _configured(link, "appendfsync")
    if policy not in (None, "always"):
        remedy = "One or two seconds of accepted turns are lost when it dies. Set appendfsync always, or accept that."
        return [Finding(what="Redis", seen=f"appendfsync {policy}", verdict=Verdict.WARNING, remedy=remedy)]
    if persistence.get("aof_last_write_status", "ok") != "ok":
        remedy = "It cannot write its append-only file: look at its disk."
        return [Finding(what="Redis", seen="the last write of its file failed", verdict=Verdict.BAD, remedy=remedy)]
    return [Finding(what="Redis", seen=f"append-only file, appendfsync {policy or 'unknown'}")]


async def _eviction(link: RedisLink, memory: dict[str, object]) -> list[Finding]:
    policy = memory.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        remedy = "Set maxmemory-policy noeviction: pending turns are not a cache. When full, remember() then spools."
        return [Finding(what="Redis", seen=f"evicts ({policy})", verdict=Verdict.BAD, remedy=remedy)]
    used, limit = int(str(memory.get("used_memory", 0))), int(str(memory.get("maxmemory", 0)))
    if limit and used > 0.8 * limit:
        remedy = "Give it more memory, or add store workers: when it is full, turns go to the spool."
        said = f"{used / limit:.0%} of its memory is used"
        return [Finding(what="Redis", seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return []


async def _configured(link: RedisLink, name: str) -> str | None:
    try:
        answer = await link.call("CONFIG", "GET", name)
    except errors.AftermindError:  # managed ones do not tell
        return None
    return answer[1].decode() if answer else None


def _clock(what: str, ahead: float) -> Finding:
    if abs(ahead) <= CLOCKS_APART:
        return Finding(what=what, seen="its clock agrees with ours")
    remedy = "Run chrony or ntpd on both hosts: times that people see come from either."
    side = "ahead of" if ahead > 0 else "behind"
    return Finding(
        what=what, seen=f"its clock is {abs(ahead):.1f} s {side} ours", verdict=Verdict.WARNING, remedy=remedy
    )


def _sung(queue: str, wait: float | None) -> Finding:
    if wait is not None:
        return Finding(what=f"queue {queue}", seen=f"a worker took a bell in {1000 * wait:.0f} ms")
    remedy = f"Run `aftermind worker --queues {queue}`, or more of them: all may be busy."
    seen = f"nobody took a bell within {canary.LONGEST_SECONDS:g} s"
    return Finding(what=f"queue {queue}", seen=seen, verdict=Verdict.WARNING, remedy=remedy)


def _paused(state: ProviderState) -> str:
    return f"not asked for {state.wait_seconds:.0f} s: {state.why}. Its jobs wait, and use no try up"


def _backlog(what: str, count: int, age: float, kind: str) -> Finding:
    if count and age > OLD_WORK:
        remedy = f"Nobody works on them. Run `aftermind worker --queues memory.{kind}`, and look at its log."
        return Finding(
            what=what, seen=f"{count:,} wait, the oldest for {age:.0f} s", verdict=Verdict.BAD, remedy=remedy
        )
    return Finding(what=what, seen=f"{count:,} wait")
