"""The legend of all Redis keys: name, type, writers, readers, and lifetime.

No key is spelt elsewhere; the Lua files get theirs from here (`Keys.in_lua`). Keys without a TTL belong to unfinished
work: they are removed with it.

A Redis Cluster has them in `SHARDS` shards, each in one hash slot (`Keys.of_shard`): all keys of an owner are in one,
and each shard is complete in itself, as a single server is.
"""

from binascii import crc_hqx
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from urllib.parse import quote, unquote

from aftermind.types import JobId, Scope

ANONYMOUS = "@"  # cannot come out of quote(), so no user id meets it

SHARDS = 16  # of a Redis Cluster, so as many primaries share the work; fixed, since another number moves every owner
SLOTS = 16_384  # of every Redis Cluster

HIGH_SECONDS = 7 * 86_400  # a session's high mark only corrects clocks that are apart; none is a week behind
SETTLED_SECONDS = 10  # the database is asked whether a key was used at most `remember_budget_seconds` before
PROVIDER_SECONDS = 3_600  # longer than a breaker is ever open; an idle hour makes every bucket full and every doubt old
# A larger turn is stored alone, and only one at a time in a worker process, so that a small one never waits behind it:
# terms and vectors of 64 KiB take some 10 ms, as long as an ordinary batch.
LARGE_TURN_BYTES = 65_536
# From an agent's reading of its clock to acceptance: the default budget of `remember`.
MAX_ACCEPT_MS = 500
TURN_COST_BYTES = 16_384  # of a turn count as one turn in the fair order; an ordinary one has 1 to 4 KiB
PROBE_MS = 30_000  # after which a call that was to find out how a provider is, and never came back, is given up
TRUST_MS = 2_000  # see `Keys.trusted`: how long an effect waits at most for a Redis that does not answer
PROCESS_SECONDS = 30  # three times the interval in which a process announces its keys
SILENT_PROCESS_SECONDS = 600  # for which a process is listed that was not stopped and announces nothing
WATERMARK_SECONDS = 86_400  # a replica that lags a day is long out of use (settings.replica_max_lag_seconds)


def owner_part(scope: Scope) -> str:
    """The owner as part of a key: quoted namespace, `/`, quoted user or `@` for the anonymous bucket."""
    return _quoted(scope.namespace, scope.user_id)


@lru_cache(maxsize=1_000)  # each turn asks twice, and quoting takes 3 µs
def _quoted(namespace: str, user_id: str | None) -> str:
    user = ANONYMOUS if user_id is None else quote(user_id, safe="")
    return f"{namespace_part(namespace)}/{user}"


def namespace_part(namespace: str) -> str:
    """The namespace as part of a key: quoted, as `owner_part` has it."""
    return quote(namespace, safe="")


def parse_owner(part: str) -> Scope:
    """The reverse of `owner_part`."""
    namespace, _, user = part.partition("/")
    return Scope(namespace=unquote(namespace), user_id=None if user == ANONYMOUS else unquote(user))


def shard_number(owner: Scope | str) -> int:
    """The shard of an owner in a Redis Cluster; also of anything else that is kept under a name."""
    return crc_hqx(_part(owner).encode(), 0) % SHARDS


def slot(shard: int) -> int:
    """The hash slot of a shard; those of all shards are evenly distributed, as slots are over primaries."""
    return _hash_slot(_tag(shard))


@cache
def _tag(shard: int) -> str:
    tags = (f"{shard}.{number}" for number in count())
    return next(tag for tag in tags if _hash_slot(tag) * SHARDS // SLOTS == shard)


def _hash_slot(tag: str) -> int:
    return crc_hqx(tag.encode(), 0) % SLOTS


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix (`settings.redis_prefix`); of a Redis Cluster, those of one shard.

    `shard` None is a single server; "*" makes patterns for all shards.
    """

    prefix: str = "aftermind:"
    shard: int | str | None = None

    @property
    def start(self) -> str:
        """What these keys begin with: the prefix, and the hash tag of the shard."""
        if self.shard is None:
            return self.prefix
        tag = _tag(self.shard) if isinstance(self.shard, int) else self.shard
        return f"{self.prefix}{{{tag}}}:"

    def route(self) -> str:
        """Never written: names the slot of a call to a Redis Cluster.

        While the slot is moved from node to node, a call that names a missing key is answered ASK. So no script runs
        where half of its keys are.
        """
        return f"{self.start}route"

    # a turn that no store job has committed yet

    def turn(self, job_id: JobId | str) -> str:
        """HASH: payload, owner, base, at, size, generation, from, hash; attempts, lost, lost_token, token, worker once
        claimed.

        Written by accept and the workers' scripts, read by recall and workers. Until stored, dead-lettered or
        forgotten.
        """
        return f"{self.start}turn:{job_id}"

    def settled(self, job_id: JobId | str) -> str:
        """STRING, with `:` and the turn's generation behind it: the hash of a turn with an idempotency key that was
        stored. Settle writes, accept reads. `SETTLED_SECONDS`.
        """
        return f"{self.start}settled:{job_id}"

    def pending(self, owner: Scope | str) -> str:
        """ZSET job → position: every unstored turn of an owner. Accept, settle, forget write; recall reads."""
        return f"{self.start}pending:{_part(owner)}"

    def ready(self, owner: Scope | str) -> str:
        """ZSET job → position: the owner's unclaimed turns. Accept and the workers' scripts."""
        return f"{self.start}ready:{_part(owner)}"

    def rounds(self) -> str:
        """ZSET namespace → round in which it is served next: those with a turn in `ready:`. Written as `ready`."""
        return f"{self.start}rounds"

    def owner_rounds(self, namespace: str) -> str:
        """ZSET owner → round in which it is served next, within its (quoted) namespace. Written as `ready`."""
        return f"{self.start}rounds:{namespace}"

    def served(self) -> str:
        """HASH namespace → round of the owner that was served last there; "" → that of the namespaces. As `ready`."""
        return f"{self.start}served"

    def finished(self) -> str:
        """ZSET namespace → round up to which it has used its share, where that is ahead of the others. As `ready`."""
        return f"{self.start}finished"

    def leased(self) -> str:
        """ZSET job → ms at which its lease (or its snooze) ends. Written by the workers' scripts."""
        return f"{self.start}leased"

    def index(self) -> str:
        """ZSET job → ms of acceptance: the size and the age of the backlog. Accept, settle, forget."""
        return f"{self.start}index"

    def count(self) -> str:
        """HASH: bytes (of all payloads). Stays; written by accept, settle, forget."""
        return f"{self.start}count"

    def high(self, owner: Scope | str) -> str:
        """HASH session → its highest position so far. Accept writes and reads. `HIGH_SECONDS` after the last turn."""
        return f"{self.start}high:{_part(owner)}"

    def counted_from(self, owner: Scope | str) -> str:
        """HASH session → the position that `high` began with (types.counting). As `high`."""
        return f"{self.start}from:{_part(owner)}"

    def generation(self) -> str:
        """HASH: last (the highest generation delivered here), begun (the first one of this run of Redis).

        Raised by accept, forget and the process that settles the epoch; turns are stamped with it. Permanent.
        """
        return f"{self.start}generation"

    def moved(self, namespace: str) -> str:
        """STRING: the database of the map that the (quoted) namespace has moved to. Accept refuses its turns, and
        recall reads it there.

        `aftermind tenants move` and the reconciler write; accept and recall read. Until the tenant moves back.
        """
        return f"{self.start}moved:{namespace}"

    # what a reader must have seen

    def watermark(self, owner: Scope | str) -> str:
        """STRING `system/timeline/lsn`, see wire.watermark. Workers raise it, recall reads. `WATERMARK_SECONDS`."""
        return f"{self.start}watermark:{_part(owner)}"

    def epoch(self) -> str:
        """STRING, see wire.redis_epoch: the current run of this Redis. Set by any process that finds none.
        Permanent.
        """
        return f"{self.start}epoch"

    def trusted(self, namespace: str) -> str:
        """STRING `from until` (ms of Redis's clock): replicas of the (quoted) namespace may be read under watermarks.

        See freshness.lease. Written and read by recalls. `TRUST_MS`.
        """
        return f"{self.start}trusted:{namespace}"

    # what need not be computed twice

    def question(self, embedder: str, digest: str) -> str:
        """STRING: a question's vector, little-endian floats. Recall. `settings.vector_cache_seconds`."""
        return f"{self.start}question:{embedder}:{digest}"

    # what a model provider may be asked

    def provider(self, name: str) -> str:
        """HASH: requests, tokens, at (its budgets); failures, open, opened, why, probe (its breaker).

        The breaker of its large calls is a second one, of the name `PROVIDER (large calls)`. The gate of
        every process (llm.rate_limit) writes and reads. `PROVIDER_SECONDS` after the last call.
        """
        return f"{self.start}provider:{name}"

    def providers(self) -> str:
        """SET of provider names that were asked lately. As `provider`."""
        return f"{self.start}providers"

    # events

    def events(self, owner: Scope | str) -> str:
        """Pub/sub CHANNEL of an owner's events (events.bus). Workers publish, agents subscribe; nothing is kept."""
        return f"{self.start}events:{_part(owner)}"

    # what must not be cut off unseen

    def audit(self) -> str:
        """HASH namespace/number → code: ends of audit trails. Processes that act add; the janitor removes old ones."""
        return f"{self.start}audit"

    def processes(self) -> str:
        """HASH process → ms of Redis's clock, fingerprints of the keys that it uses (wire.process_registry).

        Workers, reconciler and service write; `aftermind doctor` reads. `SILENT_PROCESS_SECONDS` after the last one.
        """
        return f"{self.start}processes"

    def rate(self, what: str) -> str:
        """STRING: uses of a limit in the current window (web.shared_rate_limit). The window's length."""
        return f"{self.start}rate:{what}"

    # Celery's

    def queue(self, name: str) -> str:
        """LIST of Celery messages, as kombu names it under `global_keyprefix`. Kombu pops, everybody pushes."""
        return f"{self.prefix}{name}"

    def journal(self, part: str) -> str:
        """Keys of a `redis://` store, in one hash slot. Its processes write and read them; no TTL.

        `state`: HASH: version, holder (the process that may write), waiting (one that asks for its turn), places (rows
        that were inserted). `versions`, `erasures`: ZSET of partitions by the version of their last change or erasure.
        Of each partition, by table and key: `rows:NAME`: HASH of rows. `order:NAME`: HASH of the order of insertion.
        `changed:NAME`: ZSET of the last versions, deleted rows included.
        """
        return f"{self.prefix}{{journal}}:{part}"

    def vector_index(self) -> str:
        """Query engine's index over `vector_entry`. Its name is a string, and no key."""
        return f"{self.prefix}vectors"

    def vector_mark(self) -> str:
        """HASH: made_by, embedder of a vector index in Redis. Written when it is first opened; no TTL."""
        return f"{self.prefix}vectors:mark"

    def vector_entry(self, episode_id: str) -> str:
        """HASH: vector and labels of an episode. Index jobs write and delete it; the query engine reads it; no TTL."""
        return f"{self.prefix}vectors:entry:{episode_id}"

    def in_lua(self) -> Mapping[str, str | int]:
        """Names, stems and life times for the Lua files: `TURN .. job` is `turn(job)`, and so on."""
        return {
            "TURN": self.turn(""),
            "SETTLED": self.settled(""),
            "PENDING": self.pending(""),
            "READY": self.ready(""),
            "HIGH": self.high(""),
            "COUNTED_FROM": self.counted_from(""),
            "GENERATION": self.generation(),
            "WATERMARK": self.watermark(""),
            "TRUSTED": self.trusted(""),
            "ROUNDS": self.rounds(),
            "OWNER_ROUNDS": self.owner_rounds(""),
            "SERVED": self.served(),
            "FINISHED": self.finished(),
            "LEASED": self.leased(),
            "INDEX": self.index(),
            "COUNT": self.count(),
            "MOVED": self.moved(""),
            "EPOCH": self.epoch(),
            "PROVIDER": self.provider(""),
            "PROVIDERS": self.providers(),
            "PROCESSES": self.processes(),
            "RATE": self.rate(""),
            "LARGE_TURN_BYTES": LARGE_TURN_BYTES,
            "MAX_ACCEPT_MS": MAX_ACCEPT_MS,
            "TURN_COST_BYTES": TURN_COST_BYTES,
            "PROBE_MS": PROBE_MS,
            "PROVIDER_SECONDS": PROVIDER_SECONDS,
            "HIGH_SECONDS": HIGH_SECONDS,
            "SETTLED_SECONDS": SETTLED_SECONDS,
            "WATERMARK_SECONDS": WATERMARK_SECONDS,
            "TRUST_MS": TRUST_MS,
        }


def _part(owner: Scope | str) -> str:
    return owner if isinstance(owner, str) else owner_part(owner)
