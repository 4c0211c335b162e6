"""Every setting, with its unit, its default, the reason for it, and how to switch the thing off."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from aftermind import errors, private_files

PREFIX = "AFTERMIND_"


class _Files(PydanticBaseSettingsSource):
    """`AFTERMIND_X_FILE` names a file whose text is `AFTERMIND_X`: how Docker and Kubernetes hand out secrets."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # Any: pydantic's own
        name = f"{PREFIX}{field_name.upper()}_FILE"
        path = os.environ.get(name)
        if path is None:
            return None, field_name, False
        try:
            text = Path(path).read_text().strip()
            is_list = self.field_is_complex(field)
            return self.decode_complex_value(field_name, field, text) if is_list else text, field_name, False
        except OSError as exc:
            raise errors.InvalidSettings(name, path, f"it cannot be read: {exc.strerror}.") from exc
        except ValueError as exc:
            raise errors.InvalidSettings(name, path, f"it holds no JSON: {exc}.") from exc

    def __call__(self) -> dict[str, Any]:  # Any: as above
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


def _check_dotenv(path: Path) -> None:
    """Refuse a `.env` of the working folder that another user may have written: it names databases and keys."""
    try:
        private_files.check_owner(path, path.stat())
    except FileNotFoundError:
        return
    except private_files.UnsafeFile as exc:
        raise errors.InvalidSettings(".env", str(path.absolute()), f"{exc.strerror}, or leave this folder.") from exc
    except OSError as exc:
        raise errors.InvalidSettings(".env", str(path.absolute()), f"it cannot be read: {exc.strerror}.") from exc


class Settings(BaseSettings):
    """What can be set, from the environment (`AFTERMIND_*`), a `.env` file or by keyword. Frozen.

    Nothing has to be set: `Memory()` finds the embedded stack of the state folder, and needing to set something else is
    a fault of ours to look into.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,  # Compose sets a variable that it was not given to ""
        extra="ignore",
        frozen=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments stand above the environment, that above files named there, those above `.env`."""
        _check_dotenv(Path(".env"))
        return init_settings, env_settings, _Files(settings_cls), dotenv_settings

    # where things are
    database_url: SecretStr | None = Field(
        None, description="Postgres primary, or `inmemory`. None: the embedded stack of `state_dir`."
    )
    relay_url: SecretStr | None = Field(
        None,
        description="The same as a member of `aftermind_relay`, for workers and for what operators ask: it sees the jobs and events of every tenant. None: `database_url`.",
    )
    migrator_url: SecretStr | None = Field(
        None, description="The same as the owner of the schema, for `aftermind migrate` alone. None: `database_url`."
    )
    database_password_file: Path | None = Field(
        None,
        description="Postgres's password of this process's role, read anew for each connection: a rotated one needs no restart. None: as the URL says.",
    )
    allow_owner: bool = Field(
        False, description="Take a database role that row-level security does not bind: a superuser, or the owner."
    )
    database_pooler: bool = Field(
        False,
        description="A pooler in transaction mode (pgbouncer) stands before Postgres: leave nothing in a session.",
    )
    replica_urls: tuple[SecretStr, ...] = Field(
        (), description="Streaming replicas for recall, as a JSON list. Empty: recall reads the primary."
    )
    broker_url: SecretStr | None = Field(
        None, description="Celery's broker: `redis://` or `amqp://`. None: the embedded stack's Redis."
    )
    redis_url: SecretStr | None = Field(
        None, description="Redis for pending turns, watermarks and events. None: the broker, where that is a Redis."
    )
    redis_prefix: str = Field(
        "aftermind:", description="Before every Redis key and queue, so that a Redis can be shared."
    )
    state_dir: Path = Field(
        Path(".aftermind"), description="The spool and the embedded stack. Put it on a disk that stays."
    )
    encryption_key: SecretStr | None = Field(
        None,
        description="Master key of namespaces whose content is encrypted (`aftermind encrypt`), the same on every host; several, with commas between: the first wraps. None: `encryption.key` in `state_dir`.",
    )
    audit_key: SecretStr | None = Field(
        None,
        description="Key of the audit trail, the same on every host; several, with commas between, after a change: the first writes. None: `audit.key` in `state_dir`, made at first use.",
    )
    namespace: str = Field("default", description="Tenant of calls that name none.")

    # accepting a turn
    accept: Literal["redis", "postgres"] = Field(
        "redis",
        description="`redis`: in Redis's append-only file. `postgres`: committed first, 1-3 ms, survives Redis.",
    )
    remember_budget_seconds: float = Field(
        0.5, gt=0, description="Longest that remember() waits for Redis before it spools to disk."
    )
    message_max_bytes: int = Field(
        262_144, gt=0, description="Largest message, as UTF-8. 256 KiB holds a long document."
    )
    turn_max_messages: int = Field(1_000, gt=0, description="Most messages of one remember().")
    turn_max_bytes: int = Field(
        8_388_608, gt=0, description="Most text of one remember(). It is one command of Redis, which waits for it."
    )
    metadata_max_bytes: int = Field(16_384, gt=0, description="Largest metadata of a message, as JSON.")
    metadata_max_depth: int = Field(8, gt=0, description="Deepest nesting of a message's metadata.")
    future_tolerance_seconds: float = Field(
        86_400,
        ge=0,
        description="How far ahead of our clock `occurred_at` may lie; a day allows for any time zone slip.",
    )
    pending_max_turns: int = Field(
        1_000_000,
        gt=0,
        description="Turns in Redis that no store job has committed, of all users; beyond it, `when_full`.",
    )
    pending_max_bytes: int = Field(
        1_073_741_824, gt=0, description="The same in bytes. 1 GiB is what a small Redis can spare."
    )
    pending_max_age_seconds: float = Field(
        3_600,
        gt=0,
        description="Age of the oldest pending turn beyond which `when_full` applies: no worker has run for it.",
    )
    pending_max_turns_per_user: int = Field(
        100_000, gt=0, description="Pending turns of one user, so that one cannot fill what all share."
    )
    when_full: Literal["spool", "refuse"] = Field(
        "spool", description="Past a pending limit: keep the turn on local disk, or raise QueueFull."
    )
    pending_recalled: int = Field(
        200,
        ge=0,
        description="Newest pending turns of a user that a recall looks at; `degraded` tells of more. 0 looks at none.",
    )
    spool_max_bytes: int = Field(
        268_435_456, ge=0, description="Spool on local disk while Redis is away. 0 switches it off."
    )
    ring_every_turn: bool = Field(False, description="Ring a bell for each turn also where enough bells wait already.")

    # deadlines
    db_timeout_seconds: float = Field(5.0, gt=0, description="Longest wait for one statement of a worker or a write.")
    db_connect_timeout_seconds: float = Field(2.0, gt=0, description="Longest wait for a new database connection.")
    db_pool_size: int = Field(10, gt=0, description="Connections to each database node per process.")
    redis_timeout_seconds: float = Field(
        0.5, gt=0, description="Longest wait for one answer of Redis on the agent's side."
    )
    recall_budget_seconds: float = Field(
        1.0, gt=0, description="Longest recall; what is missing then makes it degraded."
    )
    query_embedding_budget_seconds: float = Field(
        0.3, gt=0, description="Longest wait for the question's vector; beyond it recall is lexical only, and says so."
    )
    model_timeout_seconds: float = Field(60.0, gt=0, description="Longest model call of a job, in all.")

    # recall
    recall_token_budget: int = Field(1_000, gt=0, description="Tokens of a block where the caller names no budget.")
    recall_limit: int = Field(20, gt=0, description="Most episodes of a block.")
    replica_max_lag_seconds: float = Field(
        30.0, gt=0, description="A replica that lags more is left until it has caught up."
    )
    replica_check_seconds: float = Field(2.0, gt=0, description="How often replicas are looked at.")
    exact_search_max_rows: int = Field(
        8_000, ge=0, description="Episodes of a user up to which vectors are scanned exactly; HNSW beyond."
    )
    language: str = Field(
        "english",
        description="Snowball language of stems (34 are known; stop words for english). `simple`: words as they are.",
    )
    vector_cache_seconds: float = Field(
        3_600, ge=0, description="How long a question's vector is kept in Redis. 0: not."
    )

    # models
    embedder: str = Field(
        "auto", description="`auto` (OpenAI with a key, else hash), `hash`, `openai:MODEL`, `local:PATH`, `off`."
    )
    extractor: str = Field(
        "auto", description="`auto` (OpenAI with a key, else rules), `rules`, `openai:MODEL`, `off`."
    )
    replay_models: tuple[str, ...] = Field(
        (),
        description="Models that a replay may name beside the one that is set, as a JSON list. Empty: that one alone.",
    )
    chat_model: str = Field("gpt-5-mini", description="Model of an Agent that names none, and of `openai` extraction.")
    embedding_dimension: int | None = Field(None, gt=0, le=4000, description="Vector length. None: the embedder's own.")
    openai_api_key: SecretStr | None = Field(
        None, validation_alias="OPENAI_API_KEY", description="Key of OpenAI or of a compatible server."
    )
    openai_base_url: str | None = Field(
        None, validation_alias="OPENAI_BASE_URL", description="Any OpenAI-compatible server. None: OpenAI's own."
    )

    model_requests_per_minute: int = Field(
        0, ge=0, description="Calls to a model provider, of all processes together; beyond it jobs wait. 0: no budget."
    )
    model_tokens_per_minute: int = Field(
        0, ge=0, description="Tokens sent to a model provider, estimated, of all processes together. 0: no budget."
    )

    namespace_tokens_per_day: int = Field(
        0,
        ge=0,
        description="Tokens, in and out, that language models may use for one namespace in a day (UTC), embeddings left out; beyond it its jobs wait. 0: no budget.",
    )
    namespace_usd_per_day: float = Field(
        0.0,
        ge=0,
        description="The same in US dollars, embeddings included, of models whose price is known. 0: no budget.",
    )
    profile_schema: str | None = Field(
        None,
        description="Traits of a profile: `module:Model` of a Pydantic model that the workers can import, or a JSON schema. None: the model proposes traits.",
    )

    # jobs
    lease_seconds: float = Field(30.0, gt=0, description="A claim on a job; a worker that is gone is noticed after it.")
    heartbeat_seconds: float = Field(10.0, gt=0, description="How often a running job's lease is renewed.")
    max_attempts: int = Field(8, gt=0, description="Tries before a job is a dead letter: about 20 minutes of back-off.")
    max_lost_leases: int = Field(
        3, gt=0, description="Workers that one job may take with it; two happen in a rolling restart."
    )
    backoff_base_seconds: float = Field(1.0, gt=0, description="First wait after a failure; doubles, with jitter.")
    backoff_cap_seconds: float = Field(600.0, gt=0, description="Longest wait between two tries.")
    reconcile_seconds: float = Field(2.0, gt=0, description="How often work that nobody holds is looked for.")
    store_batch_turns: int = Field(100, gt=0, description="Turns of one store transaction.")
    store_batch_bytes: int = Field(8_388_608, gt=0, description="Bytes of one store transaction.")
    embed_batch_texts: int = Field(
        256, gt=0, description="Texts of one embedding call, where the embedder allows as many."
    )
    extract_quiet_seconds: float = Field(
        6.0, ge=0, description="A session is mined when nothing came for so long: a burst of turns is one model call."
    )
    extract_max_wait_seconds: float = Field(25.0, ge=0, description="… or when its oldest unmined turn is so old.")
    extract_max_turns: int = Field(20, gt=0, description="Most turns of one extraction call; more are another at once.")
    extract_max_tokens: int = Field(6_000, gt=0, description="Most tokens of turns in one extraction call.")
    summary_turns: int = Field(
        20, gt=0, description="A session's summary is brought up to date when so many turns are not in it yet."
    )
    summary_quiet_seconds: float = Field(
        180.0, ge=0, description="… or when nothing came for so long after its mining."
    )
    summary_max_wait_seconds: float = Field(600.0, ge=0, description="… or after so long, however lively it is.")
    summary_max_tokens: int = Field(8_000, gt=0, description="Most tokens of turns in one summary call.")
    profile_quiet_seconds: float = Field(
        180.0, ge=0, description="A profile is brought up to date when nothing of its user was mined for so long."
    )
    profile_max_wait_seconds: float = Field(600.0, ge=0, description="… or after so long.")
    profile_max_tokens: int = Field(8_000, gt=0, description="Most tokens of turns in one profile call.")
    job_retention_days: float = Field(
        30.0, gt=0, description="How long done jobs stay; longer than any spool or pending."
    )
    attempt_retention_days: float = Field(
        30.0, gt=0, description="How long the attempts of finished jobs stay; those of dead letters stay with them."
    )
    event_retention_days: float = Field(7.0, gt=0, description="How long events can be caught up with.")
    tombstone_retention_days: float = Field(
        90.0,
        gt=0,
        description="How long what was forgotten is kept out where it comes late; longer than any host with a spool may be away.",
    )
    audit_retention_days: float = Field(
        365.0,
        ge=30,
        description="How long the audit trail stays. Entries younger than 30 days can be deleted by nobody.",
    )
    retention_every_seconds: float = Field(
        86_400.0,
        gt=0,
        description="How often the policies of namespaces are carried out (`aftermind retention`). Summaries of sessions that lose turns are made anew each time.",
    )
    housekeeping_seconds: float = Field(
        60.0, gt=0, description="How often what is old is looked for: finished jobs, attempts, events, tombstones."
    )

    # webhooks
    webhook_patience_hours: float = Field(
        72.0,
        gt=0,
        description="A webhook that took nothing for so long is disabled; shorter than `event_retention_days`.",
    )
    webhook_allow_private: bool = Field(
        False,
        description="Let webhooks lead into private networks and to this machine, also by plain HTTP: for receivers of your own.",
    )
    webhook_key: SecretStr | None = Field(
        None,
        description="Keys that seal webhooks' secrets, 32 bytes each as URL-safe base64, separated by commas: the first seals, any opens. The same for web processes and workers. None: `webhook.key` in `state_dir`, made when needed.",
    )

    # process
    shutdown_grace_seconds: float = Field(
        20.0, gt=0, description="After SIGTERM, what still runs so long is handed back. Kubernetes kills after 30."
    )
    ready_file: Path | None = Field(
        None, description="A worker or reconciler creates it once it takes work, for whoever started the process."
    )
    worker_max_memory_bytes: int = Field(
        1_073_741_824, gt=0, description="A worker process that has grown beyond it finishes its work and stops."
    )
    metrics_host: str = Field("127.0.0.1", description="Where a worker or reconciler serves its metrics.")
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port on which a worker or reconciler serves its Prometheus metrics, one process a port. 0: none; `/metrics` of the service has those that share its PROMETHEUS_MULTIPROC_DIR.",
    )
    tracing: bool = Field(
        False,
        description="Make OpenTelemetry spans, from `remember` to the model call. An agent's go to the tracer provider of its process, those of workers by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    strict: bool = Field(False, description="Raise where an Agent's memory fails, instead of answering without it.")
    web_host: str = Field("127.0.0.1", description="Where the service listens.")
    web_port: int = Field(8377, ge=0, le=65535, description="Port of the service. 0: any free one.")
    web_max_listeners: int = Field(
        10_000, gt=0, description="Listeners to events of one web process; some 30 KB each. One more is told 503."
    )
    web_requests_per_key: int = Field(
        128, gt=0, description="Requests of one key that one web process answers at the same time; beyond it 429."
    )
    web_streams_per_key: int = Field(
        2_000, gt=0, description="Listeners to events of one key and web process; beyond it 429."
    )
    web_rate_per_key: float = Field(
        1_000.0,
        ge=0,
        description="Requests a second of one key and web process, two seconds' worth in a burst; beyond it 429. 0: no limit.",
    )
    web_header_timeout_seconds: float = Field(
        10.0, gt=0, description="Longest time for a client to send a request's headers; then it is disconnected."
    )
    web_body_timeout_seconds: float = Field(
        60.0, gt=0, description="Longest time for a client to send a request's body, from the headers on."
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="Bearer token that `/metrics` of the service asks for: counts of all tenants. None or empty: it answers the local token alone.",
    )
    flower_port: int = Field(5577, ge=0, le=65535, description="Port of Flower. 0: any free one.")
    flower_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Where browsers reach Flower, for the link in the screens. None: no link; the embedded stack sets it.",
    )
