"""Calls of a `Memory` over several databases: answered by the database of the namespace, or by all of them.

A call that names a namespace is made in its database alone. Lists of all tenants are read from every database
concurrently and merged; `MergedList.away` names the databases that did not answer. Ids without a namespace are searched
for in all of them. Actions without a namespace are refused: they would have to be done in all databases or in none.
"""

import asyncio
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from aftermind import errors
from aftermind.api.health import Component, Health, Waiting, Work
from aftermind.database_map import DEFAULT
from aftermind.outbox.publish_or_spool import ORPHANS_SECONDS
from aftermind.types.api_key import ApiKey
from aftermind.types.job_admin import JobCount, MetricSample, StageLatency
from aftermind.types.replay import DeadGroup

T = TypeVar("T")
K = TypeVar("K")
Memory = Any  # `aftermind.Memory`, whose module imports this one
Call = Callable[..., Any]  # Any: any call of `Memory` and its sub-APIs
Merge = Callable[[Iterable[Any]], list[Any]]

APIS = (
    *("facts", "blocks", "items", "jobs", "ranking", "checkpoints", "groups", "api_keys", "webhooks", "dead_letters"),
    *("replays", "job_admin", "audit", "encryption", "retention"),
)
# Refused without a namespace: they change the jobs of all tenants.
CHANGING = frozenset(
    {"job_admin.apply", "job_admin.undo", "job_admin.pause", "job_admin.resume", "dead_letters.discard"}
    | {"replays.create"}
)
# What an id, a key or a token belongs to is in one database.
SEARCHED = frozenset(
    {"api_keys.check", "api_keys.check_stream_token", "api_keys.any", "job_admin.timeline", "dead_letters.get"}
    | {"replays.get"}
)
OF_A_PLAN = frozenset(
    f"replays.{name}"
    for name in ("estimate", "dry_run", "dry_run_results", "record_access", "start", "pause", "abort", "list_items")
)


class MergedList(list[T]):
    """Rows of several databases. `away` are those that did not answer: their rows are missing."""

    away: tuple[str, ...] = ()


def away_databases(rows: Sequence[object]) -> tuple[str, ...]:
    """The databases whose rows are missing in a list."""
    return rows.away if isinstance(rows, MergedList) else ()


def _by(key: Callable[[Any], Any], *, newest: bool = False) -> Merge:  # Any: rows
    return lambda rows: sorted(rows, key=key, reverse=newest)


def _grouped(key: Callable[[T], object], merge: Callable[[list[T]], T]) -> Merge:
    def merged(rows: Iterable[T]) -> list[T]:
        groups: dict[object, list[T]] = defaultdict(list)
        for row in rows:
            groups[key(row)].append(row)
        return [merge(group) for group in groups.values()]

    return merged


def _sum_counts(rows: list[JobCount]) -> JobCount:
    return replace(rows[0], count=sum(row.count for row in rows), scheduled=sum(row.scheduled for row in rows))


def _sum_groups(rows: list[DeadGroup]) -> DeadGroup:
    return replace(
        rows[0],
        count=sum(row.count for row in rows),
        namespaces=sum(row.namespaces for row in rows),
        oldest=min(row.oldest for row in rows),
        newest=max(row.newest for row in rows),
    )


def _slowest(rows: list[StageLatency]) -> StageLatency:
    """Percentiles of two databases have no sum: those of the slower one, over all jobs."""
    return replace(max(rows, key=lambda row: row.p99), count=sum(row.count for row in rows))


def _sum_samples(rows: list[MetricSample]) -> MetricSample:
    series: dict[str, float] = {}
    for name, value in chain.from_iterable(row.series.items() for row in rows):
        is_age = "oldest" in name
        series[name] = max(series.get(name, 0.0), value) if is_age else series.get(name, 0.0) + value
    return replace(rows[0], series=series)


_BY_TIME: Merge = _grouped(lambda row: row.at, _sum_samples)
_BY_FAULT: Merge = _grouped(lambda row: (row.kind, row.reason_code, row.fingerprint), _sum_groups)
MERGED: Mapping[str, Merge] = {
    "job_admin.list": _by(lambda job: job.updated_at, newest=True),
    "job_admin.pending_turns": _by(lambda turn: turn.accepted_at),
    "job_admin.counts": _grouped(lambda row: (row.kind, row.state), _sum_counts),
    "job_admin.latencies": _grouped(lambda row: row.kind, _slowest),
    "job_admin.tenants": _by(lambda tenant: tenant.namespace),
    "job_admin.costs": _by(lambda cost: (cost.day, cost.namespace), newest=True),
    "job_admin.processes": _by(lambda process: process.name),
    "job_admin.metric_history": lambda rows: sorted(_BY_TIME(rows), key=lambda row: row.at),
    "job_admin.pauses": list,
    "dead_letters.list": _by(lambda job: job.updated_at, newest=True),
    "dead_letters.groups": lambda rows: sorted(_BY_FAULT(rows), key=lambda row: row.count, reverse=True),
    "replays.list": _by(lambda plan: plan.frozen_at, newest=True),
    "audit.verify": list,
    "encryption.list": _by(lambda each: each.namespace),
}


@dataclass(slots=True)
class Databases:
    """The memory in each database of the map; those of others are opened when they are first needed."""

    own: Memory
    open_: Callable[[str], Memory]
    opened: dict[str, Memory] = field(default_factory=dict)
    orphans_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        moved = self.own.settings.moved
        moved.parts = lambda name: self.get(name)._parts
        moved.opened = lambda: [memory._parts for memory in (self.own, *self.opened.values())]

    def get(self, name: str) -> Memory:
        """The memory in this database."""
        if name == self.own.settings.database:
            return self.own
        with self.lock:
            if name not in self.opened:
                self.opened[name] = self.open_(name)
            return self.opened[name]

    def of(self, namespace: str | None) -> Memory:
        """The memory of a namespace; None: of this process's own."""
        return self.get(self.own.settings.database_for(self.own.namespace if namespace is None else namespace))

    async def read_moves(self) -> None:
        """Learn which tenants were moved, from each database that answers. Calls learn of later moves by themselves."""
        from aftermind.db import tenant_moves  # SQLAlchemy: loaded with the first Postgres

        found, _ = await self.ask(lambda memory: tenant_moves.list_moved(memory._parts.operations))
        self.own.settings.follow_moves(found)

    async def follow(self, namespace: str | None, call: Callable[[Memory], Awaitable[T]]) -> T:
        """Make a call in the database of a namespace, and again where the namespace has moved to another one."""
        for _ in self.own.settings.database_names:
            try:
                return await call(self.of(namespace))
            except errors.TenantMoved as exc:
                if exc.database is None:
                    raise
                self.own.settings.follow_move(exc.namespace, exc.database)
        return await call(self.of(namespace))

    def find_orphans(self) -> None:
        """Begin to send what ended processes have spooled on this host for any database; checked every few seconds."""
        if time.monotonic() < self.orphans_at:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a call that is awaited later: asyncio.run(memory.recall(…))
            return
        self.orphans_at = time.monotonic() + ORPHANS_SECONDS
        for name in self.own.settings.database_names:
            if any(self.own.settings.of_database(name).spool_dir.rglob("*.spool")):
                self.get(name)._parts.outboxes.get().find_orphans()

    async def ask(self, call: Callable[[Memory], Awaitable[T]]) -> tuple[dict[str, T], dict[str, Exception]]:
        """What each database returns, and why others did not answer. Raises what is no fault of one database."""
        names = self.own.settings.database_names
        found = await asyncio.gather(*(call(self.get(name)) for name in names), return_exceptions=True)
        answers: dict[str, T] = {}
        away: dict[str, Exception] = {}
        for name, each in zip(names, found, strict=True):
            if isinstance(each, errors.Unavailable | errors.SchemaOutdated | errors.WrongRole):
                away[name] = each
            elif isinstance(each, BaseException):
                raise each
            else:
                answers[name] = each
        return answers, away

    async def merge(self, method: str, call: Call, limit: int | None) -> MergedList[Any]:
        """The rows of all databases in one list. Raises `Unavailable` if none answers.

        Rows of a tenant that has left a database, and that are not purged there, are left out.
        """
        await self.read_moves()
        answers, away = await self.ask(call)
        if not answers:
            raise next(iter(away.values()))
        rows = (row for name, found in answers.items() for row in found if self._is_served(name, row))
        merged = MergedList(MERGED[method](rows)[:limit])
        merged.away = tuple(away)
        return merged

    def _is_served(self, database: str, row: object) -> bool:
        settings = self.own.settings
        namespace = _namespace_of((row,), {})
        return namespace not in settings.moved.databases or settings.database_for(namespace) == database

    async def search(self, call: Callable[[Memory], Awaitable[T]]) -> T:
        """The first true result. Raises `Unavailable` if there is none, and a database that did not answer."""
        tasks = [asyncio.ensure_future(call(self.get(name))) for name in self.own.settings.database_names]
        try:
            away: Exception | None = None
            for done in asyncio.as_completed(tasks):
                try:
                    found = await done
                except (errors.Unavailable, errors.SchemaOutdated, errors.WrongRole) as exc:
                    away = exc
                    continue
                if found:
                    return found
            if away is not None:
                raise away
            return found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def with_plan(self, plan_id: Any) -> Memory:  # Any: a plan's id
        """The memory in the database of a replay plan; this process's own if there is no such plan."""

        async def find(memory: Memory) -> Memory | None:
            return memory if await memory.replays.get(plan_id) is not None else None

        return await self.search(find) or self.own

    async def create_stream_token(self, key_id: str, **options: Any) -> str:  # Any: options of the call
        """A token signed by a key, in whatever database the key is."""

        async def sign(memory: Memory) -> str:
            with suppress(errors.InvalidKey):
                return str(await memory.api_keys.create_stream_token(key_id, **options))
            return ""

        # If no database has it, the error is that of the own one.
        token = await self.search(sign) or await self.own.api_keys.create_stream_token(key_id, **options)
        return str(token)

    async def health(self) -> Health:
        """The components and the work of every database.

        Ready if one of them is whole: the tenants of the others are degraded, and those of this one are not.
        """
        names = self.own.settings.database_names
        return _merge_health(
            dict(zip(names, await asyncio.gather(*(self.get(n).health() for n in names)), strict=True))
        )

    async def close(self) -> None:
        """Close the memories of all databases."""
        for memory in (self.own, *self.opened.values()):
            await memory.close()


def route(memory: Memory, own: Memory, open_: Callable[[str], Memory]) -> None:
    """Let each call of a memory with several databases be answered by the right one. `own` is its unrouted copy."""
    databases = Databases(own, open_)
    for name, method in inspect.getmembers(type(memory), inspect.isfunction):
        if not name.startswith("_") and "namespace" in inspect.signature(method).parameters:
            memory.__dict__[name] = _routed(databases, (name,))
    for name in APIS:
        memory.__dict__[name] = _RoutedApi(databases, name)
    memory.__dict__.update(health=databases.health, close=databases.close)


class _RoutedApi:
    """A sub-API of `Memory` over several databases."""

    def __init__(self, databases: Databases, name: str) -> None:
        self._databases, self._name = databases, name

    def __getattr__(self, name: str) -> Any:  # Any: a call of a sub-API, or an attribute
        found = getattr(getattr(self._databases.own, self._name), name)
        return _routed(self._databases, (self._name, name)) if inspect.isroutine(found) else found


def _routed(databases: Databases, path: tuple[str, ...]) -> Call:
    method = ".".join(path)

    def of(memory: Memory) -> Call:
        found: Any = memory  # Any: the memory, or its sub-API
        for each in path:
            found = getattr(found, each)
        return found  # type: ignore[no-any-return]

    def call(*args: Any, **options: Any) -> Any:  # Any: arguments and result of any call
        namespace = _namespace_of(args, options)
        databases.find_orphans()
        if namespace is not None:
            return _followed(databases, of, namespace, args, options)
        if method in CHANGING:
            why = "there are several databases, so an action names its namespace."
            raise errors.InvalidFilter("namespace", None, why)
        if method in MERGED:
            bound = inspect.signature(of(databases.own)).bind(*args, **options)
            bound.apply_defaults()
            return databases.merge(method, lambda memory: of(memory)(*args, **options), bound.arguments.get("limit"))
        if method in SEARCHED:
            return databases.search(lambda memory: _placed_there(databases, memory, of(memory)(*args, **options)))
        if method in OF_A_PLAN:
            return _of_plan(databases, of, args, options)
        if method == "api_keys.create_stream_token":
            return databases.create_stream_token(*args, **options)
        return _followed(databases, of, None, args, options)

    return call


def _followed(
    databases: Databases,
    of: Callable[[Memory], Call],
    namespace: str | None,
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:  # Any: as in `_routed`
    """The call in the database of its namespace; a coroutine is repeated where the namespace has moved."""
    if inspect.iscoroutinefunction(of(databases.own)):
        return databases.follow(namespace, lambda memory: of(memory)(*args, **options))
    return of(databases.of(namespace))(*args, **options)


async def _placed_there(databases: Databases, memory: Memory, asked: Awaitable[T]) -> T | None:
    """What was found; None for a key of a namespace of another database, whose tenants it must not open."""
    found: Any = await asked  # Any: a key, a letter, a timeline, a plan, or a yes
    key = found[0] if isinstance(found, tuple) else found
    if isinstance(key, ApiKey) and memory.settings.database_for(key.namespace) != memory.settings.database:
        await databases.read_moves()
        if memory.settings.database_for(key.namespace) != memory.settings.database:
            return None
    return found  # type: ignore[no-any-return]


async def _of_plan(
    databases: Databases, of: Callable[[Memory], Call], args: Sequence[Any], options: Mapping[str, Any]
) -> Any:  # Any: as in `_routed`
    plan_id = args[0] if args else options["plan_id"]
    return await of(await databases.with_plan(plan_id))(*args, **options)


def _namespace_of(args: Sequence[object], options: Mapping[str, object]) -> str | None:
    """The namespace that a call names: as an option, or in a filter, a job or an owner."""
    given = options.get("namespace")
    if given is not None:
        return given if isinstance(given, str) else None  # which the call refuses
    for each in chain(args, options.values()):
        named = getattr(getattr(each, "scope", each), "namespace", None)
        if isinstance(named, str):
            return named
    return None


def _merge_health(found: Mapping[str, Health]) -> Health:
    is_any_ready = any(health.is_ready for health in found.values())
    parts: list[Component] = []
    for name, health in found.items():
        needed = health.is_ready or not is_any_ready
        parts += (
            replace(part, name=_labelled(part.name, name), needed=part.needed and needed) for part in health.parts
        )
    work: dict[str, Work] = {}
    for row in chain.from_iterable(health.work for health in found.values()):
        work[row.kind] = _add_work(work[row.kind], row) if row.kind in work else row
    waiting = [health.waiting for health in found.values() if health.waiting is not None]
    return Health(
        parts=tuple(parts),
        work=tuple(work.values()),
        replicas=tuple(
            replace(each, name=_labelled(each.name, name)) for name, health in found.items() for each in health.replicas
        ),
        waiting=_add_waiting(waiting) if waiting else None,
        paused={name: wait for health in found.values() for name, wait in health.paused.items()},
        refused_texts=sum(health.refused_texts for health in found.values()),
        malformed_values=sum(health.malformed_values for health in found.values()),
    )


def _labelled(what: str, database: str) -> str:
    return what if database == DEFAULT else f"{what} ({database})"


def _add_work(one: Work, other: Work) -> Work:
    return Work(
        kind=one.kind,
        runnable=one.runnable + other.runnable,
        running=one.running + other.running,
        waiting=one.waiting + other.waiting,
        dead=one.dead + other.dead,
        age_seconds=max(one.age_seconds, other.age_seconds),
    )


def _add_waiting(found: Sequence[Waiting]) -> Waiting:
    bells: dict[str, int] = defaultdict(int)
    for queue, count in chain.from_iterable(each.bells.items() for each in found):
        bells[queue] += count
    return Waiting(
        turns=sum(each.turns for each in found),
        is_known=all(each.is_known for each in found),
        size_bytes=sum(each.size_bytes for each in found),
        bells=dict(bells),
        spooled_bytes=sum(each.spooled_bytes for each in found),
        spool_damaged=sum(each.spool_damaged for each in found),
    )
