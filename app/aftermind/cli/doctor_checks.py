"""The doctor's checks, one function per component; those of keys and audit trails are in `doctor_key_and_audit_checks`.

They return findings and never raise for a faulty component.
"""

import asyncio
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps
from typing import ParamSpec

from aftermind import errors
from aftermind.api import address_resolution, audit_anchors
from aftermind.api.address_resolution import Addresses
from aftermind.api.health import (
    OVERDUE_SECONDS,
    damaged_spool,
    foreign_spool,
    health,
    pauses_by_queue,
    pending_age,
    read_pauses,
    resume_command,
    spent_budgets,
    spooled_bytes,
)
from aftermind.api.job_admin import MAX_LISTED, JobAdmin
from aftermind.api.memory_services import Parts
from aftermind.api.process_registry import list_processes
from aftermind.api.wiring import open_parts
from aftermind.cli import terminal, worker_probe
from aftermind.db import migrate, postgres_node_probe, tenant_moves
from aftermind.db.postgres_url import parse_hosts
from aftermind.llm import factory, prices
from aftermind.llm.protocols import embedder_identity
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderState
from aftermind.outbox.doorbell_sender import broker_unavailable
from aftermind.outbox.spool_deployment import Deployment
from aftermind.settings import Settings, unknown_variables
from aftermind.stack import ComponentState, Stack
from aftermind.types import JobKind
from aftermind.types.job_admin import JobPause
from aftermind.wire import queues
from aftermind.wire.redis.client import RedisLink, unavailable
from aftermind.wire.redis.cluster import is_cluster
from aftermind.wire.redis_keys import Keys

P = ParamSpec("P")

CLOCKS_APART = 2.0  # seconds: order within a session is kept by Redis, but what people read is our clock
FREE_DISK = 1024**3
FULL_DISK = 64 * 1024**2  # a segment of Postgres's log has 16 MiB
CHECK_TIMEOUT_SECONDS = 10.0
FOREIGN_REMEDY = (
    "Run an agent or the service with the addresses of that deployment and this state folder: it sends them. If both "
    "addresses have changed, and the process of the file has ended, rename it: remove everything from the first @ to "
    ".spool. See troubleshooting, Spooled turns are for another deployment."
)
ROLE_REMEDY = "Connect as a member of aftermind_app (agents) or aftermind_relay (workers): see docs/security.md."


class Verdict(StrEnum):
    """How serious a finding is, in the words of the table."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The checked component, the observation and the remedy."""

    what: str
    seen: str
    verdict: Verdict = Verdict.GOOD
    remedy: str = ""


# What a server that answers refuses a login for, by a part of its message.
REFUSED = (
    ("password authentication failed", "Correct the user and the password in {setting}."),
    ("does not exist", "Correct the database or the user in {setting}, or create it."),
    ("NOAUTH", "Add the password to the address: redis://:PASSWORD@host:port."),
    ("WRONGPASS", "Correct the user and the password in AFTERMIND_BROKER_URL (and AFTERMIND_REDIS_URL, if it is set)."),
    ("Authentication required", "Add the password to the address: redis://:PASSWORD@host:port."),
    ("invalid username-password", "Correct the user and the password in AFTERMIND_BROKER_URL."),
)

# Which setting has the login of a check of Postgres; others use AFTERMIND_DATABASE_URL.
LOGIN_OF = {
    "replica": "AFTERMIND_REPLICA_URLS",
    "work": "AFTERMIND_RELAY_URL (of AFTERMIND_DATABASE_URL, if that is not set)",
    "placement": "AFTERMIND_RELAY_URL",
}

Check = Callable[P, Awaitable[list[Finding]]]


def reports_failure(what: str, remedy: str) -> Callable[[Check[P]], Check[P]]:
    """Decorate a check: what does not answer is a finding too."""

    def decorate(check: Check[P]) -> Check[P]:
        @wraps(check)
        async def check_safely(*args: P.args, **kwargs: P.kwargs) -> list[Finding]:
            try:
                async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                    return await check(*args, **kwargs)
            except (errors.AftermindError, TimeoutError) as exc:
                why = str(exc) or f"no answer within {CHECK_TIMEOUT_SECONDS:g} s"
                if isinstance(exc, errors.StoreUnavailable | errors.RedisUnavailable):  # its hint names this command
                    why = f"{exc.what}: {exc.why}" if isinstance(exc, errors.StoreUnavailable) else f"Redis: {exc.why}"
                why = why.removeprefix(f"{what}: ")
                setting = LOGIN_OF.get(what, "AFTERMIND_DATABASE_URL")
                refused = [fix.format(setting=setting) for text, fix in REFUSED if text in why]
                found = refused[0] if refused else _find_held_remedy(what, args) or _first_remedy(exc, what) or remedy
                return [Finding(what=what, seen=why, verdict=Verdict.BAD, remedy=found)]

        return check_safely

    return decorate


def _find_held_remedy(what: str, args: Sequence[object]) -> str | None:
    """What to do if the component is one of the embedded stack that was stopped on purpose."""
    settings = next((each for each in args if isinstance(each, Settings)), None)
    if what not in ("Postgres", "Redis") or settings is None or settings.database_url is not None:
        return None
    if what == "Redis" and settings.redis_url is not None:  # another one than the stack's
        return None
    held = [each.name for each in Stack(settings.state_dir).status() if each.state is ComponentState.HELD]
    return f"It is held: `aftermind stack release {what.lower()}`." if what.lower() in held else None


def _first_remedy(exc: Exception, what: str) -> str | None:
    """What to correct before this check can report anything: a component that has another check."""
    if isinstance(exc, errors.BrokerUnavailable):
        return "Start that Redis, or correct AFTERMIND_BROKER_URL."
    if isinstance(exc, errors.RedisUnavailable) and what != "Redis":
        return "Correct Redis first."
    if isinstance(exc, errors.StoreUnavailable) and what not in ("Postgres", "replica"):
        return "Correct Postgres first."
    if isinstance(exc, errors.InvalidSettings) and what == "models" and not isinstance(exc, errors.ExtraMissing):
        return f"Correct AFTERMIND_{exc.field.removeprefix('AFTERMIND_').upper()}."
    if isinstance(exc, TimeoutError) and what not in ("Postgres", "replica", "Redis"):
        return "Correct Postgres and Redis first, if they do not answer either."
    return None


@reports_failure("Postgres", "Start it (`aftermind up` for the embedded one), or correct AFTERMIND_DATABASE_URL.")
async def postgres(url: str, settings: Settings) -> list[Finding]:
    """The primary: whether it answers, is a primary, has our schema, and agrees with our clock."""
    seen = await postgres_node_probe.node(url)
    findings = [Finding(what="Postgres", seen=f"version {seen.version} answers in {seen.round_trip_ms:.1f} ms")]
    if seen.in_recovery:
        remedy = "Set AFTERMIND_DATABASE_URL to the primary and list replicas in AFTERMIND_REPLICA_URLS."
        findings.append(Finding(what="Postgres", seen="it is a replica", verdict=Verdict.BAD, remedy=remedy))
    findings.append(_clock("Postgres", seen.clock_ahead_seconds))
    findings.append(await _schema(url, settings))
    findings += await _isolation(url, settings)
    if seen.fsync == "off" or seen.synchronous_commit == "off":
        remedy = "Set fsync=on and synchronous_commit=on: otherwise a crash loses commits that callers rely on."
        said = f"fsync={seen.fsync}, synchronous_commit={seen.synchronous_commit}"
        findings.append(Finding(what="Postgres", seen=said, verdict=Verdict.WARNING, remedy=remedy))
    if seen.timeline is not None:
        hosts = (_host(url, *host, used=seen.timeline) for host in parse_hosts(url))
        findings += await asyncio.gather(*hosts)
        findings.append(_replication(seen.synchronous_standby_names, seen.synchronous_commit))
    if seen.wal_compression == "off" and not seen.in_recovery:
        remedy = "Set wal_compression=on: with a million episodes a turn writes a third less WAL."
        findings.append(Finding(what="Postgres", seen="wal_compression=off", remedy=remedy))
    return findings


@reports_failure("replica", "Start it, or take it out of AFTERMIND_REPLICA_URLS; recall reads the primary until then.")
async def replica(url: str, primary: str, settings: Settings) -> list[Finding]:
    """A replica: whether it follows this primary, how far behind it is, and whether tenants are isolated on it."""
    seen = await postgres_node_probe.node(url)
    what = f"replica {seen.name}"
    try:
        leader = await postgres_node_probe.node(primary)  # later than the replica: it cannot be behind that
    except errors.StoreUnavailable:
        return [Finding(what=what, seen="it answers; the primary does not, so its lag is unknown")]
    if not seen.in_recovery:
        remedy = (
            "It was promoted or never was a replica. Rebuild it with pg_basebackup, or configure it as the primary."
        )
        return [Finding(what=what, seen="it is not a replica", verdict=Verdict.BAD, remedy=remedy)]
    if seen.system != leader.system:
        remedy = "It follows another cluster. Rebuild it from this primary."
        return [Finding(what=what, seen="it belongs to another primary", verdict=Verdict.BAD, remedy=remedy)]
    login = await postgres_node_probe.isolation(url)
    if login.is_unbound and not settings.allow_owner:
        said = f"role {login.role} bypasses row-level security, so recall does not read this replica"
        return [Finding(what=what, seen=said, verdict=Verdict.BAD, remedy=ROLE_REMEDY)]
    behind = leader.lsn - seen.lsn
    if behind < 0:
        remedy = (
            "It has rows that the primary has not, as after a restore, and recall may read them. Stop it, and rebuild "
            "it with pg_basebackup."
        )
        return [Finding(what=what, seen=f"{-behind:,} bytes ahead", verdict=Verdict.BAD, remedy=remedy)]
    if seen.lag_seconds > settings.replica_max_lag_seconds:
        remedy = (
            "Check its connection to the primary (its log names the reason), its disk and long queries; recall does "
            "not use it until it has caught up."
        )
        since = "an unknown time" if math.isinf(seen.lag_seconds) else f"{seen.lag_seconds:.0f} s"
        said = f"{since} and {behind / 1024**2:.1f} MB behind"
        return [Finding(what=what, seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return [Finding(what=what, seen=f"follows, {behind:,} bytes behind"), _clock(what, seen.clock_ahead_seconds)]


async def no_replica() -> list[Finding]:
    """Finding for a configuration without replicas."""
    remedy = "Every recall reads the primary. List streaming replicas in AFTERMIND_REPLICA_URLS to distribute the load."
    return [Finding(what="replicas", seen="none", verdict=Verdict.GOOD, remedy=remedy)]


@reports_failure(
    "Redis",
    "Start it (`aftermind up` for the embedded one), or correct AFTERMIND_BROKER_URL or its file (and "
    "AFTERMIND_REDIS_URL, if it is set).",
)
async def redis(url: str, settings: Settings) -> list[Finding]:
    """Redis: whether it answers, keeps what it is given, and never evicts; of a cluster, each of its primaries."""
    link = RedisLink(url, timeout=2.0, name="aftermind-doctor")
    try:
        if len(link.shards) == 1:
            return await _redis_server(link, "Redis")
        shards = enumerate(link.shards)
        checked = await asyncio.gather(*(_redis_shard(each, f"Redis shard {number}") for number, each in shards))
        findings = [finding for found in checked for finding in found]
        # Shards of one primary have the same findings.
        return list({(each.seen, each.verdict): each for each in reversed(findings)}.values())[::-1]
    finally:
        await link.close()


async def _redis_shard(link: RedisLink, what: str) -> list[Finding]:
    try:
        return [*await _redis_server(link, what), *await _coverage(link)]
    except errors.RedisUnavailable as exc:
        remedy = "Its owners' turns are spooled. Start the node, or let a replica take over."
        return [Finding(what=what, seen=str(exc), verdict=Verdict.BAD, remedy=remedy)]


async def _redis_server(link: RedisLink, what: str) -> list[Finding]:
    started = time.perf_counter()
    await link.call("PING")
    took = (time.perf_counter() - started) * 1000
    with unavailable():
        client = link.client()
        server, memory = await client.info("server"), await client.info("memory")
        persistence, clock = await client.info("persistence"), await client.time()
    version = server.get("valkey_version") or server.get("redis_version")
    findings = [Finding(what=what, seen=f"version {version} answers in {took:.1f} ms")]
    findings.append(_clock("Redis", clock[0] + clock[1] / 1e6 - time.time()))
    if server.get("redis_mode") == "cluster" and not is_cluster(link.given_url):
        remedy = "Name the cluster: AFTERMIND_REDIS_URL=redis+cluster://…, and a single server as AFTERMIND_BROKER_URL."
        said = "it is a node of a Redis Cluster"
        findings.append(Finding(what=what, seen=said, verdict=Verdict.BAD, remedy=remedy))
    findings += await _redis_user(link)
    findings += await _durability(link, persistence)
    findings += await _eviction(link, memory)
    return findings


async def _coverage(link: RedisLink) -> list[Finding]:
    if await _configured(link, "cluster-require-full-coverage") != "yes":
        return []
    remedy = "Set cluster-require-full-coverage no on every node: otherwise the loss of one shard stops all of them."
    return [Finding(what="Redis", seen="requires every shard", verdict=Verdict.WARNING, remedy=remedy)]


@reports_failure("store", "Correct AFTERMIND_DATABASE_URL, or start the server that it names.")
async def record_store(found: Addresses, settings: Settings) -> list[Finding]:
    """A store other than Postgres: whether it answers, and its jobs. It is opened once: one process is one writer."""
    parts = open_parts(found, settings)
    try:
        seen = {part.name: part for part in (await health(parts)).parts}
        store, vectors = seen["store"], seen["vectors"]
        if store.state != "ok":
            remedy = "Correct AFTERMIND_DATABASE_URL, or start the server that it names."
            return [Finding(what="store", seen=store.detail, verdict=Verdict.BAD, remedy=remedy)]
        findings = [Finding(what="store", seen=f"{found.scheme}: {store.detail}")]
        if vectors.state == "ok":
            findings.append(Finding(what="vectors", seen=vectors.detail))
        else:
            remedy = "Set AFTERMIND_EMBEDDER to the stored embedder, or run `aftermind reembed start`."
            findings.append(Finding(what="vectors", seen=vectors.detail, verdict=Verdict.BAD, remedy=remedy))
        return findings + await _jobs(parts, found)
    finally:
        await parts.close()


@reports_failure("work", "See `aftermind status`, and the logs of workers and reconciler.")
async def work(found: Addresses, settings: Settings) -> list[Finding]:
    """Pending jobs, and whether workers process them."""
    parts = open_parts(found, settings)
    try:
        return await _jobs(parts, found)
    finally:
        await parts.close()


async def _jobs(parts: Parts, found: Addresses) -> list[Finding]:
    findings: list[Finding] = []
    pauses = await read_pauses(parts)
    findings += [
        Finding(
            what=f"{name} jobs",
            seen=_paused_by(each),
            verdict=Verdict.WARNING,
            remedy=f"They wait, and use no attempts. `{resume_command(name, each)}` ends the pause.",
        )
        for name, each in pauses_by_queue(pauses)
    ]
    if parts.pending is not None:
        backlog = await parts.pending.backlog()
        age = await pending_age(parts.pending, backlog, pauses)
        turns = _backlog("pending turns", backlog.turns, age, "store", found)
        findings.append(await _without_worker(parts, turns) if age else turns)
    states = await parts.gate.states()
    for row in await parts.ledger.backlog():
        age = row.oldest_wait.total_seconds() if row.oldest_wait else 0.0
        if row.runnable and factory.find_provider_pause(row.kind, parts.settings, states):
            findings.append(Finding(what=f"{row.kind} jobs", seen=f"{row.runnable:,} wait for the provider"))
        elif row.runnable:
            findings.append(_backlog(f"{row.kind} jobs", row.runnable, age, str(row.kind), found))
        elif row.waiting:
            remedy = "`aftermind jobs list` shows when, and the error of a retry."
            findings.append(
                Finding(what=f"{row.kind} jobs", seen=f"{row.waiting:,} scheduled for later", remedy=remedy)
            )
        if row.dead:
            remedy = "Each is kept with its reason and payload. Fix the cause, then replay them."
            said = f"{row.dead:,} dead letters"
            findings.append(Finding(what=f"{row.kind} jobs", seen=said, verdict=Verdict.WARNING, remedy=remedy))
    limits = "AFTERMIND_NAMESPACE_TOKENS_PER_DAY, AFTERMIND_NAMESPACE_USD_PER_DAY or AFTERMIND_NAMESPACE_BUDGETS"
    remedy = f"They continue at 00:00 UTC, or with a larger limit: {limits}."
    findings += [
        Finding(what="budget", seen=str(each), verdict=Verdict.WARNING, remedy=remedy)
        for each in await spent_budgets(parts)
    ]
    findings += [
        Finding(what=f"provider {each.provider}", seen=_paused(each), verdict=Verdict.BAD, remedy=each.remedy or "")
        for each in states
        if each.why is not None
    ]
    return findings or [Finding(what="work", seen="no pending jobs")]


@reports_failure("placement", "Repeat the check when the database answers.")
async def placement(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether a database has only rows of tenants that are placed in it."""
    if found.relay is None:
        remedy = "Set its relay_url: only that role reads the names of all tenants."
        return [Finding(what="placement", seen="not checked", verdict=Verdict.WARNING, remedy=remedy)]
    parts = open_parts(found, settings)
    try:
        tenants = await JobAdmin(parts).tenants(limit=MAX_LISTED)
        moves = await tenant_moves.list_moves(parts.operations)
    finally:
        await parts.close()
    await _follow_moves(settings)
    findings = [
        _judge_move(namespace, *move) for namespace, move in moves.items() if move[0] in tenant_moves.UNFINISHED
    ]
    elsewhere = [each.namespace for each in tenants if settings.database_for(each.namespace) != settings.database]
    left = [each for each in elsewhere if moves.get(each, ("", ""))[0] == tenant_moves.MOVED]
    if left:
        seen = f"{len(left):,} namespaces have moved, and their rows are still here: {', '.join(left[:10])}"
        remedy = f"Delete them: `aftermind tenants purge {left[0]} --database {settings.database}`."
        findings.append(Finding(what="placement", seen=seen, verdict=Verdict.WARNING, remedy=remedy))
    elsewhere = [each for each in elsewhere if each not in left]
    if not elsewhere:
        return findings or [Finding(what="placement", seen=f"{len(tenants):,} namespaces, each placed here")]
    remedy = "Their memory here is not recalled. Set AFTERMIND_PLACEMENT back: see docs/guides/growing.md."
    said = f"{len(elsewhere):,} namespaces with rows here are placed elsewhere: {', '.join(elsewhere[:10])}"
    return [*findings, Finding(what="placement", seen=said, verdict=Verdict.BAD, remedy=remedy)]


def _judge_move(namespace: str, state: str, other: str) -> Finding:
    """A move that has not ended, seen from its source."""
    seen = f"namespace {namespace!r} is being moved to {other!r}" + (
        "" if state == tenant_moves.COPYING else ", and its writes are paused"
    )
    remedy = f"If no process does it: `aftermind tenants move {namespace} --to {other}`, or that with `--abort`."
    return Finding(what="placement", seen=seen, verdict=Verdict.WARNING, remedy=remedy)


async def _follow_moves(settings: Settings) -> None:
    """Learn which tenants have moved, from the databases that answer."""
    found = {}
    for name in settings.database_names:
        of_database = settings.of_database(name)
        parts = open_parts(address_resolution.resolve(of_database), of_database)
        try:
            with suppress(errors.Unavailable):
                found[name] = await tenant_moves.list_moved(parts.operations)
        finally:
            await parts.close()
    settings.follow_moves(found)


async def _without_worker(parts: Parts, turns: Finding) -> Finding:
    """Pending turns that are not overdue yet are a failure already if no store worker runs, unless one is held."""
    if turns.verdict is not Verdict.GOOD or parts.redis is None:
        return turns
    listed = await list_processes(parts.redis, parts.redis.keys(parts.settings.redis_prefix))
    if any(queues.STORE in each.queues and not each.is_silent for each in listed):
        return turns
    seen, is_stack = f"{turns.seen}, and no store worker is running", parts.settings.database_url is None
    components = await asyncio.to_thread(Stack(parts.settings.state_dir).status) if is_stack else []
    if any(each.name == "worker-store" and each.state is ComponentState.HELD for each in components):
        remedy = "It is held: `aftermind stack release worker-store`."
        return replace(turns, seen=seen, verdict=Verdict.WARNING, remedy=remedy)
    remedy = f"Run `aftermind worker --queues {queues.STORE}`."
    return replace(turns, seen=seen, verdict=Verdict.BAD, remedy=remedy)


@reports_failure("workers", "See `aftermind status`, and the logs of the workers.")
async def workers(url: str, settings: Settings, *, redis: str | None) -> list[Finding]:
    """Whether a doorbell is taken from each queue of the Redis broker at `url`: the canary."""
    link = RedisLink(url, timeout=2.0, name="aftermind-canary")
    try:
        waits = await worker_probe.sing(link, Keys(settings.redis_prefix))
    except errors.RedisUnavailable as exc:
        if url == redis:
            raise
        raise broker_unavailable(url, exc) from exc
    finally:
        await link.close()
    return [_sung(queue, wait) for queue, wait in waits.items()]


@reports_failure("reconciler", "See `aftermind jobs processes`.")
async def reconciler(url: str, settings: Settings) -> list[Finding]:
    """Whether a process announces itself that does the work of the reconciler: store workers are standby."""
    link = RedisLink(url, timeout=2.0, name="aftermind-doctor")
    try:
        processes = await list_processes(link, link.keys(settings.redis_prefix))
    finally:
        await link.close()
    running = [each for each in processes if not each.is_silent]
    if any(each.name.startswith("reconciler ") for each in running):
        return [Finding(what="reconciler", seen="running")]
    if any(queues.STORE in each.queues for each in running):
        return [Finding(what="reconciler", seen="a store worker does its work")]
    remedy = (
        "Run `aftermind reconciler`: until then jobs that are due later do not start, and lost doorbells and expired "
        "leases are not noticed. If one runs, its log has what it waits for."
    )
    return [Finding(what="reconciler", seen="none is running", verdict=Verdict.WARNING, remedy=remedy)]


async def variables() -> list[Finding]:
    """Variables that are ignored, because they name no setting."""
    return [
        Finding(
            what="settings",
            seen=f"{name} is ignored: there is no such setting",
            verdict=Verdict.WARNING,
            remedy=suggestion or "Remove it, or correct its name.",
        )
        for name, suggestion in sorted(unknown_variables().items())
    ]


async def processes(settings: Settings) -> list[Finding]:
    """Components of the embedded stack that are not well, by its supervisor: one for each reason."""
    if settings.database_url is not None:
        return []
    components = await asyncio.to_thread(Stack(settings.state_dir).status)
    by_reason = {each.detail or each.name: each for each in reversed(components)}
    verdicts = {
        ComponentState.STARTING: Verdict.WARNING,
        ComponentState.UNHEALTHY: Verdict.BAD,
        ComponentState.BACKOFF: Verdict.BAD,
    }
    return [
        Finding(
            what=each.name,
            seen=f"{each.state}, started {terminal.count_of(each.restarts + 1, 'time')}: {each.detail}",
            verdict=verdicts[each.state],
            remedy=f"`aftermind logs {each.name}` shows what it wrote.",
        )
        for each in reversed(by_reason.values())
        if each.state in verdicts
    ]


async def disk(settings: Settings) -> list[Finding]:
    """Free disk space for the spool and the embedded stack."""
    folder = settings.state_dir.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < FREE_DISK:
        remedy = "Free disk space: on a full disk Postgres and Redis stop writing, and no turn can be stored."
        said = f"{free / 1024**3:.2f} GiB free at {folder}"
        verdict = Verdict.BAD if free < FULL_DISK else Verdict.WARNING
        return [Finding(what="disk", seen=said, verdict=verdict, remedy=remedy)]
    return [Finding(what="disk", seen=f"{free / 1024**3:.0f} GiB free at {folder}")]


async def spool(settings: Settings, deployment: Deployment | None = None) -> list[Finding]:
    """Turns on this host's disk because Redis was away, and what is kept of damaged ones."""
    said = await asyncio.to_thread(damaged_spool, settings)
    remedy = (
        "Check the disk. The log has file and offset; each file has one damaged record. Delete the files afterwards."
    )
    damaged = [Finding(what="spool", seen=said, verdict=Verdict.BAD, remedy=remedy)] if said else []
    return [*damaged, *_damaged_witnesses(settings), *_foreign(settings, deployment), *_unsent(settings, deployment)]


def _foreign(settings: Settings, deployment: Deployment | None) -> list[Finding]:
    said = foreign_spool(settings, deployment)
    return [Finding(what="spool", seen=said, verdict=Verdict.WARNING, remedy=FOREIGN_REMEDY)] if said else []


def _damaged_witnesses(settings: Settings) -> list[Finding]:
    found = sorted(settings.audit_dir.glob(f"*{audit_anchors.DAMAGED}"))
    remedy = "Check the disk, run `aftermind audit verify` (it still reads Redis's witness), then delete the file."
    return [
        Finding(what="audit witness", seen=f"damaged: {each}", verdict=Verdict.BAD, remedy=remedy) for each in found
    ]


def _unsent(settings: Settings, deployment: Deployment | None) -> list[Finding]:
    if settings.spool_max_bytes == 0:
        remedy = "remember() raises while Redis is down. Set AFTERMIND_SPOOL_MAX_BYTES to store turns on disk instead."
        return [Finding(what="spool", seen="disabled", verdict=Verdict.WARNING, remedy=remedy)]
    size = spooled_bytes(settings, deployment)
    if size:
        remedy = "They are sent when Redis answers again, by any process of this deployment with this state folder."
        said = f"{size:,} bytes of turns in {settings.spool_dir}"
        return [Finding(what="spool", seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return [Finding(what="spool", seen="empty")]


@reports_failure("models", "Install the extra that it names, or choose another model.")
async def models(settings: Settings) -> list[Finding]:
    """Which models will be used."""
    embedder, extractor = factory.embedder(settings), factory.extractor(settings)
    named = f"embedder {embedder.name if embedder else 'off'}, extractor {extractor.name if extractor else 'off'}"
    parts = [("rules", settings.extractor), ("hashing", settings.embedder)] if settings.openai_api_key is None else []
    offline = " and ".join(name for name, chosen in parts if chosen == "auto")
    remedy = f"Offline {offline}: set OPENAI_API_KEY for better recall and facts." if offline else ""
    missing = [
        Finding(
            what=f"model {name}",
            seen=f"{variable} is not set here",
            verdict=Verdict.WARNING,
            remedy=f"Set {variable} in every process that uses it: workers, and for an embedder also agents. "
            "Its jobs fail without a call, and are repeated.",
        )
        for name, variable in factory.missing_keys(settings).items()
    ]
    return [Finding(what="models", seen=named, remedy=remedy), *missing, *_unpriced(settings)]


def _unpriced(settings: Settings) -> list[Finding]:
    """Models that a budget of dollars does not count."""
    if not settings.namespace_usd_per_day and not any(each.usd_per_day for each in settings.namespace_budgets.values()):
        return []
    return [
        Finding(
            what=f"model {name}",
            seen="it has no price, so budgets in dollars do not count it",
            verdict=Verdict.WARNING,
            remedy=f"Set {prices.SETTING}, or a budget of tokens.",
        )
        for name in factory.paid_models(settings)
        if prices.price_of(name, settings.model_prices) is None
    ]


async def _host(url: str, host: str, port: int, *, used: int) -> Finding:
    """A host of a URL with several: its role, and whether it is the primary that is used."""
    what = f"Postgres {host}:{port}"
    try:
        timeline = await postgres_node_probe.timeline(url, host, port)
    except errors.StoreUnavailable as exc:
        remedy = "Start it, or take it out of AFTERMIND_DATABASE_URL: there is one host less to fail over to."
        return Finding(what=what, seen=str(exc), verdict=Verdict.WARNING, remedy=remedy)
    if timeline is None:
        return Finding(what=what, seen="it is a replica")
    if timeline < used:
        remedy = "It was the primary before a promotion. Rebuild it as a replica with pg_rewind or pg_basebackup."
        said = f"an old primary on timeline {timeline}; timeline {used} is used"
        return Finding(what=what, seen=said, verdict=Verdict.BAD, remedy=remedy)
    return Finding(what=what, seen=f"it is the primary, on timeline {timeline}")


def _replication(standby_names: str, commit: str) -> Finding:
    """Whether a commit is on a replica, too, before it counts."""
    if standby_names and commit not in ("off", "local"):
        return Finding(what="replication", seen=f"synchronous: {standby_names}")
    remedy = (
        "A promotion loses the commits that the primary has not sent. Set synchronous_standby_names='ANY 1 (*)', with "
        "two replicas or more: commits wait while no replica is connected."
    )
    return Finding(what="replication", seen="asynchronous", verdict=Verdict.WARNING, remedy=remedy)


async def _schema(url: str, settings: Settings) -> Finding:
    try:
        await migrate.check(url, allow_owner=settings.allow_owner)
    except errors.UnboundRole as exc:
        return Finding(what="role", seen=str(exc), verdict=Verdict.BAD, remedy=ROLE_REMEDY)
    except errors.NotAllowed as exc:
        return Finding(what="role", seen=exc.why, verdict=Verdict.BAD, remedy=exc.remedy)
    except errors.Conflict as exc:
        return Finding(what="schema", seen=str(exc), verdict=Verdict.BAD, remedy="Run `aftermind migrate`.")
    return Finding(what="schema", seen="up to date")


async def _isolation(url: str, settings: Settings) -> list[Finding]:
    """Whether row-level security is forced on every table of tenants, and binds this role."""
    seen = await postgres_node_probe.isolation(url)
    if seen.open_tables:
        said = f"row-level security is not forced on {', '.join(seen.open_tables)}"
        remedy = "Run `aftermind migrate` to force it: until then an owner can read every tenant's rows."
        return [Finding(what="tenants", seen=said, verdict=Verdict.BAD, remedy=remedy)]
    if seen.is_unbound:
        if not settings.allow_owner:  # the check of the schema has refused it
            return []
        said = f"role {seen.role} bypasses row-level security; AFTERMIND_ALLOW_OWNER allows it"
        return [Finding(what="role", seen=said, verdict=Verdict.WARNING, remedy=ROLE_REMEDY)]
    return [Finding(what="tenants", seen=f"row-level security is forced and applies to role {seen.role}")]


@reports_failure("vectors", "See `aftermind reembed status`.")
async def vectors(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether stored vectors are of the configured embedder, how many episodes have one, and a running re-embedding."""
    from aftermind.api.reembed_postgres import open_reembeddings  # only Postgres needs SQLAlchemy

    seen = await open_reembeddings(found, settings).status()
    stored, counts = seen.reembedding.stored, seen.counts
    share = f"{counts.active:,} of {counts.episodes:,} episodes" if counts.episodes else terminal.no_episodes(found)
    findings = [Finding(what="vectors", seen=f"{stored.active} serves: {share}")]
    embedder = factory.embedder(settings)
    configured = None if embedder is None else await asyncio.to_thread(embedder_identity, embedder)
    if configured is not None and configured not in stored:
        mismatch = str(errors.EmbedderMismatch(stored.active, configured))
        is_adopted = not counts.active and "AFTERMIND_MIGRATOR_URL" not in share  # else this role sees no episodes
        remedy = (
            "Run `aftermind migrate`: there are no vectors yet, so the configured embedder is adopted."
            if is_adopted
            else "Recall is lexical only until you set AFTERMIND_EMBEDDER to the stored one, or run `aftermind reembed "
            "start` and `aftermind reembed cutover`."
        )
        findings.append(Finding(what="vectors", seen=mismatch, verdict=Verdict.BAD, remedy=remedy))
    if stored.standby is not None:
        role = "kept for a rollback" if seen.reembedding.is_cut_over else "re-embedding is running"
        said = f"{stored.standby} on standby ({role}): {counts.standby:,} of {counts.episodes:,} episodes"
        findings.append(Finding(what="vectors", seen=said, remedy="`aftermind reembed status` shows the progress."))
    if seen.steps.dead:
        said, remedy = (
            f"{seen.steps.dead:,} steps of a re-embedding are dead letters",
            "Replay: `aftermind dead-letters list`.",
        )
        findings.append(Finding(what="vectors", seen=said, verdict=Verdict.WARNING, remedy=remedy))
    return findings


async def _redis_user(link: RedisLink) -> list[Finding]:
    try:
        name = (await link.call("ACL", "WHOAMI")).decode()
    except errors.RedisUnavailable:  # only an operator's user may ask
        return [Finding(what="Redis user", seen="not permitted to read it: a user of `aftermind redis-acl`")]
    remedy = "`aftermind redis-acl` creates a user with the rights of its role for each kind of process."
    return [Finding(what="Redis user", seen=name, remedy=remedy if name == "default" else "")]


async def _durability(link: RedisLink, persistence: dict[str, object]) -> list[Finding]:
    if not persistence.get("aof_enabled"):
        remedy = "Run CONFIG SET appendonly yes and add it to redis.conf: otherwise a restart loses all pending turns."
        return [Finding(what="Redis", seen="no append-only file", verdict=Verdict.BAD, remedy=remedy)]
    policy = await _configured(link, "appendfsync")
    if policy not in (None, "always"):
        remedy = (
            "If Redis crashes, one or two seconds of accepted turns are lost. Set appendfsync always to prevent this."
        )
        return [Finding(what="Redis", seen=f"appendfsync {policy}", verdict=Verdict.WARNING, remedy=remedy)]
    if persistence.get("aof_last_write_status", "ok") != "ok":
        remedy = "Check its disk: Redis cannot write its append-only file."
        return [
            Finding(
                what="Redis", seen="the last write of the append-only file failed", verdict=Verdict.BAD, remedy=remedy
            )
        ]
    return [Finding(what="Redis", seen=f"append-only file, appendfsync {policy or 'unknown'}")]


async def _eviction(link: RedisLink, memory: dict[str, object]) -> list[Finding]:
    policy = memory.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        remedy = "Set maxmemory-policy noeviction: pending turns are not a cache. If Redis is full, remember() spools."
        return [Finding(what="Redis", seen=f"evicts ({policy})", verdict=Verdict.BAD, remedy=remedy)]
    used, limit = int(str(memory.get("used_memory", 0))), int(str(memory.get("maxmemory", 0)))
    if limit and used > 0.8 * limit:
        remedy = "Increase its memory or add store workers: if it is full, turns are spooled."
        said = f"{used / limit:.0%} of its memory is used"
        return [Finding(what="Redis", seen=said, verdict=Verdict.WARNING, remedy=remedy)]
    return []


async def _configured(link: RedisLink, name: str) -> str | None:
    try:
        answer = await link.call("CONFIG", "GET", name)
    except errors.AftermindError:  # managed services do not report it
        return None
    return answer[1].decode() if answer else None


def _clock(what: str, ahead: float) -> Finding:
    if abs(ahead) <= CLOCKS_APART:
        return Finding(what=what, seen="its clock agrees with this host's")
    remedy = "Run chrony or ntpd on both hosts: times of either one are shown."
    side = "ahead of" if ahead > 0 else "behind"
    return Finding(
        what=what, seen=f"its clock is {abs(ahead):.1f} s {side} this host's", verdict=Verdict.WARNING, remedy=remedy
    )


def _sung(queue: str, wait: float | None) -> Finding:
    if wait is not None:
        return Finding(what=f"queue {queue}", seen=f"a worker consumed the probe in {1000 * wait:.0f} ms")
    remedy = (
        "If `aftermind jobs processes` lists a worker of this queue, it is busy, for example with a model that does "
        "not answer, it waits for Postgres, or it is frozen (its heartbeat is old): continue it by `kill -CONT`, or "
        f"restart it. If `aftermind status` shows one as held, release it; otherwise run "
        f"`aftermind worker --queues {queue}`."
    )
    seen = f"no worker consumed the probe within {worker_probe.LONGEST_SECONDS:g} s"
    return Finding(what=f"queue {queue}", seen=seen, verdict=Verdict.WARNING, remedy=remedy)


def _paused(state: ProviderState) -> str:
    return f"{state.pause}. Its jobs wait and use no attempts"


def _paused_by(pause: JobPause) -> str:
    where = f"namespace {pause.namespace}" if pause.namespace else "every namespace"
    return f"paused in {where} since {pause.created_at:%Y-%m-%d %H:%M} by {pause.actor}: {pause.reason}"


def _backlog(what: str, count: int, age: float, kind: str, found: Addresses) -> Finding:
    if count and age > OVERDUE_SECONDS:
        remedy = "Too few workers process them, or none. Run `aftermind worker --queues "
        remedy += f"{queues.QUEUE_OF[JobKind(kind)]}`, and check the logs."
        verdict = Verdict.BAD
        if found.is_in_process and not found.broker:
            remedy = "They run while a process has the store open: your application, or `aftermind worker`."
            verdict = Verdict.WARNING
        return Finding(what=what, seen=f"{count:,} pending, the oldest for {age:.0f} s", verdict=verdict, remedy=remedy)
    return Finding(what=what, seen=f"{count:,} pending")
