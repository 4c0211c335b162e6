"""Every table as SQLAlchemy Core sees it. The migrations create them; a test compares the two.

Statements name the columns that they answer with. Postgres refuses a prepared `SELECT *` or `RETURNING *` once a
migration has added a column, and every process that runs has prepared its own.
"""

from datetime import datetime

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Identity,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

SCHEMA = "aftermind"  # of our own, so that a database with its own `users` and `events` can be shared
VERSION_TABLE = "schema_version"
METADATA = MetaData(schema=SCHEMA)

# Serial kinds: one running job per session. Written out, because a partial index serves only a query with the same
# text.
SERIAL_KINDS = ("extract", "summarise", "profile")


def _id(name: str, *, nullable: bool = True) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=nullable)


def _key(name: str) -> Column[str]:
    return Column(name, Text(collation="C"), primary_key=True)


def _time(name: str, *, nullable: bool = True, now: bool = False) -> Column[datetime]:
    default = text("now()") if now else None
    return Column(name, DateTime(timezone=True), nullable=nullable and not now, server_default=default)


META = Table("meta", METADATA, Column("key", Text, primary_key=True), Column("value", Text, nullable=False))

USERS = Table(
    "users",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    _time("created_at", now=True),
    Column("tombstone_count", Integer, nullable=False, server_default=text("0")),
    Column("index_state", SmallInteger, nullable=False, server_default=text("0")),  # stores.postgres.vector_index
)

TOMBSTONES = Table(
    "tombstones",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    _time("at", nullable=False),
    _id("session_id"),
    _time("before"),
    Column("ids", ARRAY(Uuid), nullable=False, server_default=text("'{}'")),
    _id("member"),
    Column("by_policy", Boolean, nullable=False, server_default=text("false")),  # stores.postgres.retention
    Column("delivered", Boolean, nullable=False),  # Redis has it
)

AUDIT_LOG = Table(  # see db.audit.log; inserted, never changed
    "audit_log",
    METADATA,
    _key("namespace"),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    _time("at", nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    _id("user_id"),
    Column("detail", Text, nullable=False),  # JSON, as text: the very bytes are what the chain vouches for
    Column("key_id", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
)

AUDIT_HEADS = Table(
    "audit_heads",
    METADATA,
    _key("namespace"),
    Column("seq", BigInteger, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("pruned_to", BigInteger, nullable=False, server_default=text("0")),
    Column("pruned_mac", LargeBinary, nullable=False, server_default=text("''")),
    Column("key_id", Text, nullable=False, server_default=text("''")),
    Column("seal", LargeBinary, nullable=False, server_default=text("''")),
)

DATA_KEYS = Table(  # see db.encryption.keyring
    "data_keys",
    METADATA,
    _key("namespace"),
    _key("id"),
    Column("generation", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
    _time("created_at", now=True),
)

RETENTION_POLICIES = Table(  # how long a namespace keeps its episodes
    "retention_policies",
    METADATA,
    _key("namespace"),
    Column("max_age", Interval),
    Column("max_episodes", Integer),
    Column("keep_important", Boolean, nullable=False, server_default=text("false")),
    Column("archive", Text),
    _time("updated_at", now=True),
    _time("ran_at"),
)

EPISODES = Table(
    "episodes",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("id", Uuid, primary_key=True),
    _id("session_id"),
    _id("agent_id"),
    Column("role", Text, nullable=False),
    Column("name", Text),
    Column("content", Text, nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    _time("occurred_at", nullable=False),
    _time("remembered_at", nullable=False),
    _time("stored_at", now=True),  # by the database's clock: retention asks it
    Column("position", BigInteger, nullable=False),
    Column("counted_from", BigInteger),  # types.session_order: the base that its place began to count the session from
    Column("shift", BigInteger),  # its position, less the one that it was accepted with
    Column("job_id", Uuid),
    Column("mark", Text),
    Column("keep", ARRAY(Text)),  # what `save=` named, NULL for everything
    Column("terms", ARRAY(BigInteger), nullable=False),  # each term with its owner: see stores.postgres.owner_term_keys
    Column("embedding", HALFVEC),  # its dimension is the database's own: see `meta`
    Column("embedding_standby", HALFVEC),  # of the other embedder of a re-embedding: see db.reembedding_column
    Column("passages", ARRAY(Integer)),  # of a long text: their borders, in characters
    Column("passage_terms", ARRAY(BigInteger)),  # those of each passage, each followed by a 0
    Column("passage_embedding", ARRAY(HALFVEC)),  # of each passage, or sentence
    Column("passage_embedding_standby", ARRAY(HALFVEC)),
    Column("indexed", Boolean, nullable=False, server_default=text("false")),  # in the index of neighbours
    _time("expires_at"),  # by the clock of the database; stores.postgres.rows.UNEXPIRED
)

PREDICATES = Table(
    "predicates", METADATA, _key("namespace"), _key("predicate"), Column("cardinality", Text, nullable=False)
)

RANKING_MODELS = Table(  # coefficients that a namespace has fitted: ranking.coefficients
    "ranking_models",
    METADATA,
    *(_key(name) for name in ("namespace", "embedder")),
    Column("models", Text, nullable=False),  # JSON, in the order of the features
    _time("fitted_at", now=True),
)

FACTS = Table(
    "facts",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("id", Uuid, primary_key=True),
    _id("session_id"),
    _id("agent_id"),
    _id("subject", nullable=False),
    _id("predicate", nullable=False),
    Column("object", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("cardinality", Text, nullable=False),
    *(_time(name) for name in ("valid_from", "valid_to")),
    _time("recorded_at", nullable=False),
    _time("superseded_at"),
    Column("superseded_by", Uuid),
    Column("strength", Integer, nullable=False, server_default=text("1")),
    Column("extractor", Text, nullable=False),
    Column("terms", ARRAY(BigInteger), nullable=False),  # of its text, as episodes have them
    Column("embedding", HALFVEC),
)

FACT_SOURCES = Table(
    "fact_sources",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("fact_id", Uuid, primary_key=True),
    Column("episode_id", Uuid, primary_key=True),
    ForeignKeyConstraint(
        ["namespace", "user_id", "fact_id"], [FACTS.c.namespace, FACTS.c.user_id, FACTS.c.id], ondelete="CASCADE"
    ),
)

ASSERTIONS = Table(
    "assertions",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("id", Uuid, primary_key=True),
    Column("subject_key", BigInteger, nullable=False),  # hash of the folded subject: see owner_term_keys
    Column("subject", Text, nullable=False),
    _id("predicate", nullable=False),
    Column("object", Text, nullable=False),
    Column("operation", Text, nullable=False),
    _time("said_at", nullable=False),
    *(_time(name) for name in ("valid_from", "valid_to", "latest_at")),
    Column("confidence", Double, nullable=False),
    Column("cardinality", Text),
    Column("sources", ARRAY(Uuid), nullable=False),
    Column("place", Integer, nullable=False),
    Column("extractor", Text, nullable=False),
)

EXTRACTIONS = Table(
    "extractions",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("episode_id", Uuid, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    Column("facts", Integer, nullable=False, server_default=text("0")),
    Column("extractor", Text, nullable=False),
    Column("job_id", Uuid),
    _time("at", now=True),
)

MODEL_BATCHES = Table(  # which episodes a model was shown together, by the job that asked it
    "model_batches",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("job_id", Uuid, primary_key=True),
    _id("kind", nullable=False),
    _id("session_id"),
    Column("episode_ids", ARRAY(Uuid), nullable=False),
    _time("at", now=True),
)

PROFILE_BACKLOG = Table(  # episodes that the next profile update draws on
    "profile_backlog", METADATA, _key("namespace"), _key("user_id"), Column("episode_id", Uuid, primary_key=True)
)

BLOCKS = Table(
    "blocks",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    _key("name"),
    _id("agent_id"),
    Column("content", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=text("''")),
    Column("version", Integer, nullable=False),
    _time("updated_at", nullable=False),
)

ITEMS = Table(  # types.items: JSON documents by path and key
    "items",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    _key("name"),
    Column("content", Text, nullable=False),
    Column("vectors", LargeBinary),  # of 4-byte floats, `dimension` each
    Column("dimension", Integer),
    Column("ttl", Interval),
    _time("expires_at"),
    _time("created_at", nullable=False),
    _time("updated_at", nullable=False),
)

SUMMARIES = Table(
    "summaries",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("session_id", Text(collation="C"), primary_key=True, server_default=text("''")),
    Column("text", Text, nullable=False),
    Column("covers_to", BigInteger, nullable=False),
    Column("messages", Integer, nullable=False),
    _time("updated_at", nullable=False),
    Column("summariser", Text, nullable=False),
    Column("version", Integer, nullable=False),
    _time("last_message_at"),
)

PROFILES = Table(
    "profiles",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("version", Integer, nullable=False),
    _time("updated_at", nullable=False),
)

PROFILE_TRAITS = Table(
    "profile_traits",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    _key("name"),
    Column("value", JSONB, nullable=False),
    Column("evidence", ARRAY(Uuid), nullable=False, server_default=text("'{}'")),
    _time("updated_at", nullable=False),
    _time("last_message_at"),
    ForeignKeyConstraint(["namespace", "user_id"], [PROFILES.c.namespace, PROFILES.c.user_id], ondelete="CASCADE"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Uuid, primary_key=True),
    _id("namespace", nullable=False),
    _id("user_id", nullable=False),
    _id("session_id"),
    _id("agent_id"),
    _id("kind", nullable=False),
    _id("state", nullable=False),
    Column("payload", JSONB, nullable=False, server_default=text("'{}'")),
    Column("raw", LargeBinary),  # a turn accepted by Postgres, or bytes that could not be read
    Column("edited", LargeBinary),  # a dead turn with other messages, for the replay that is to store those
    Column("position", BigInteger),  # of an accepted turn's last message; see types.session_order
    Column("counted_from", BigInteger),
    _id("effect_key", nullable=False),
    Column("slot", SmallInteger, nullable=False, server_default=text("0")),  # 1: the successor of one that runs
    Column("queue_position", BigInteger),  # place in the fair order; NULL until run_at has passed
    Column("weight", Integer, nullable=False, server_default=text("1")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("lost_leases", Integer, nullable=False, server_default=text("0")),
    _time("run_at", now=True),
    _time("due_by"),  # a debounce never pushes run_at beyond it
    Column("token", Uuid),
    Column("worker", Text),
    _time("lease_until"),
    Column("reason_code", Text),
    Column("error_class", Text),
    Column("error", Text),
    Column("fingerprint", Text),
    Column("model", Text),
    Column("answer", JSONB),
    Column("note", Text),
    Column("origin_job_id", Uuid),
    Column("replay_plan_id", Text),
    Column("former_state", Text),  # of a discarded job: what restoring it depends on
    Column("action_id", Uuid),  # of the operator's action that discarded it, by which all of the action are restored
    _time("created_at", now=True),
    _time("updated_at", now=True),
)

JOB_PAUSES = Table(  # which jobs workers do not claim; '' means every namespace, or every kind
    "job_pauses",
    METADATA,
    _key("namespace"),
    _key("kind"),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    _time("created_at", now=True),
)

HOLD_HISTORY = Table(  # ended pauses, and of `job_id` restored discards and waits; '' as above
    "hold_history",
    METADATA,
    _id("namespace", nullable=False),
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    _id("kind", nullable=False),
    Column("job_id", Uuid),
    Column("reason", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("ended_by", Text),  # NULL: a wait, which ends by itself
)

METRIC_HISTORY = Table(  # see db.metric_history; of the whole deployment
    "metric_history",
    METADATA,
    Column("seconds", Integer, primary_key=True, autoincrement=False),
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("series", JSONB, nullable=False),
)

RECALL_COUNTS = Table(  # recalls by process and minute, until the reconciler adds them to the history
    "recall_counts",
    METADATA,
    _id("namespace", nullable=False),
    _time("at", now=True),
    Column("served_by", Text, nullable=False),
    Column("degraded", Integer, nullable=False),
    Column("buckets", ARRAY(BigInteger), nullable=False),
)

JOB_ATTEMPTS = Table(
    "job_attempts",
    METADATA,
    _id("namespace", nullable=False),
    Column("job_id", Uuid, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("worker", Text, nullable=False),
    _time("started_at", nullable=False),
    _time("ended_at"),
    Column("outcome", Text),
    Column("error_class", Text),
    Column("error", Text),
    Column("model", Text),
    Column("calls", Integer, nullable=False, server_default=text("0")),
    Column("tokens_in", Integer, nullable=False, server_default=text("0")),
    Column("tokens_out", Integer, nullable=False, server_default=text("0")),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    Column("latency_ms", Double, nullable=False, server_default=text("0")),
)

SPENDING = Table(  # what model calls have cost, by day (UTC)
    "spending",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("day", Date, primary_key=True),
    _key("kind"),
    _key("model"),
    Column("calls", BigInteger, nullable=False, server_default=text("0")),
    Column("tokens_in", BigInteger, nullable=False, server_default=text("0")),
    Column("tokens_out", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    Column("latency_ms", Double, nullable=False, server_default=text("0")),
)

JOB_FOLLOWUPS = Table(
    "job_followups",
    METADATA,
    _id("namespace", nullable=False),
    Column("followed_job_id", Uuid, primary_key=True),
    _key("kind"),
    Column("job_id", Uuid, primary_key=True),
)

REPLAY_PLANS = Table(
    "replay_plans",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("filter", JSONB, nullable=False, server_default=text("'{}'")),
    Column("overrides", JSONB, nullable=False, server_default=text("'{}'")),
    Column("rate", Double, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("max_failure_share", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("note", Text),
    _time("frozen_at", now=True),
    _time("started_at"),
    _time("resumed_at"),  # the breaker counts from here
    _time("due_at"),  # when the next item may be put in, by the plan's rate
    _time("finished_at"),
)

REPLAY_ITEMS = Table(
    "replay_items",
    METADATA,
    Column("plan_id", Text, primary_key=True),
    Column("job_id", Uuid, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("action_id", Uuid),  # that of the job when the plan was created: a later discard has another one
    Column("new_job_id", Uuid),
    Column("note", Text),
    _time("updated_at", now=True),
    ForeignKeyConstraint(["plan_id"], [REPLAY_PLANS.c.id], ondelete="CASCADE"),
)

EVENT_COUNTERS = Table(
    "event_counters",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("last", BigInteger, nullable=False),
    Column("pruned_to", BigInteger, nullable=False, server_default=text("0")),
)

EVENTS = Table(
    "events",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("seq", BigInteger, primary_key=True),
    _id("id", nullable=False),
    Column("event", JSONB, nullable=False),
    _time("created_at", now=True),
    _time("published_at"),
)

UNDELIVERED_WATERMARKS = Table(  # see db.undelivered_watermarks
    "undelivered_watermarks",
    METADATA,
    _id("namespace", nullable=False),
    _id("user_id", nullable=False),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    _time("created_at", now=True),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    _id("namespace", nullable=False),
    _key("id"),
    Column("name", Text, nullable=False),
    Column("rights", ARRAY(Text), nullable=False),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    _time("expires_at"),
    _time("revoked_at"),
)

WEBHOOKS = Table(
    "webhooks",
    METADATA,
    _key("namespace"),
    Column("id", Uuid, primary_key=True),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("secret", LargeBinary, nullable=False),  # sealed: events.sealing
    Column("former_secret", LargeBinary),  # signs too until then
    _time("former_secret_until"),
    Column("description", Text, nullable=False, server_default=text("''")),
    Column("is_disabled", Boolean, nullable=False, server_default=text("false")),
    Column("reason", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),  # in a row
    _time("failing_since"),
    _time("due_at", now=True),  # before it nothing is posted to it
    _time("delivered_at"),
    _time("created_at", now=True),
)

WEBHOOK_DELIVERIES = Table(
    "webhook_deliveries",
    METADATA,
    *(_key(name) for name in ("namespace", "user_id")),
    Column("seq", BigInteger, primary_key=True),
    Column("webhook_id", Uuid, primary_key=True),
    Column("is_failed", Boolean, nullable=False, server_default=text("false")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    _time("due_at", now=True),
    Column("token", Uuid),
    Column("error", Text),
    _time("created_at", now=True),
    ForeignKeyConstraint(
        ["namespace", "user_id", "seq"], [EVENTS.c.namespace, EVENTS.c.user_id, EVENTS.c.seq], ondelete="CASCADE"
    ),
)

TENANT_MOVES = Table(  # see db.tenant_moves
    "tenant_moves",
    METADATA,
    _key("namespace"),
    Column("state", Text, nullable=False),
    Column("database", Text, nullable=False),
    _time("updated_at", now=True),
)
