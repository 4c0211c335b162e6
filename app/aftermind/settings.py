"""Every setting, with its unit, its default, the reason for it, and how to switch the thing off."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from aftermind import database_map, errors, private_files
from aftermind.namespace_rules import check_rules, match_rule
from aftermind.nearest_name import nearest_name

PREFIX = "AFTERMIND_"
OF_KUBERNETES = re.compile(r"_SERVICE_(?:HOST|PORT)|_PORT(?:$|_\d+_)")  # a Service named aftermind-… sets these
log = logging.getLogger(__name__)
_reported: dict[str, str] = {}  # unknown variables, with suggestions; a process logs each once


class _Environment(EnvSettingsSource):
    """The environment, of which only settings that it has are read.

    pydantic-settings analyses the types of all 129 settings for each object: 3 ms, and as long again for `.env`.
    """

    def __call__(self) -> dict[str, Any]:  # Any: pydantic's own
        fields = self.settings_cls.model_fields.items()
        given = {name: each for name, each in fields if _variable(name, each).lower() in self.env_vars}
        read = {_argument(name, field): self._read(name, field) for name, field in given.items()}
        return {name: value for name, value in read.items() if value is not None}  # `null` in JSON

    def _read(self, name: str, field: FieldInfo) -> Any:  # Any: as above
        value, _, is_complex = self.get_field_value(field, name)
        try:
            return self.prepare_field_value(name, field, value, is_complex)
        except ValueError as exc:
            raise SettingsError(f'error parsing value for field "{name}"') from exc


def _options(source: PydanticBaseSettingsSource) -> dict[str, Any]:  # Any: pydantic's own
    """How a source reads the environment, by its class or by `_env_prefix=…` and the like of a call."""
    return {
        name: value for name, value in vars(source).items() if name.startswith(("env_", "case_")) and name != "env_vars"
    }


class _Files(PydanticBaseSettingsSource):
    """`AFTERMIND_X_FILE` names a file whose text is `AFTERMIND_X`: how Docker and Kubernetes hand out secrets.

    The variable is one of the environment or of `.env`.
    """

    def __init__(self, settings_cls: type[BaseSettings], dotenv: Mapping[str, str | None]) -> None:
        super().__init__(settings_cls)
        self._dotenv = {name.upper(): value for name, value in dotenv.items()}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # Any: pydantic's own
        name = f"{PREFIX}{field_name.upper()}_FILE"
        path = os.environ.get(name) or self._dotenv.get(name)
        if not path:  # a variable that is set to nothing is not set
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
        fields = self.settings_cls.model_fields.items()
        found = {_argument(name, field): self.get_field_value(field, name)[0] for name, field in fields}
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


Fields = Mapping[str, FieldInfo]


def _variables(fields: Fields) -> dict[str, str]:
    """Each setting's name by its environment variable."""
    return {_variable(name, each): name for name, each in fields.items()}


def _variable(name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or f"{PREFIX}{name.upper()}")


def _argument(name: str, field: FieldInfo) -> str:
    """The key under which pydantic takes a setting; one for all sources, so that their precedence holds."""
    return str(field.validation_alias or name)


# What other programs call these settings.
SYNONYMS = {"home": "state_dir", "data_dir": "state_dir", "port": "web_port", "model": "chat_model"}


def _suggestion(name: str, fields: Fields) -> str:
    # Without the prefix, which every variable shares.
    near = nearest_name(name.removeprefix(PREFIX).lower(), fields, SYNONYMS)
    if near is None:
        return ""
    return f" Did you mean {_variable(near, fields[near]) if name.isupper() else near}?"


def _warn_of_unknown_variables(given: Iterable[str], fields: Fields) -> None:
    known = _variables(fields)
    known |= {f"{PREFIX}{name.upper()}_FILE": name for name in fields}
    for name in sorted({each.upper() for each in given} - known.keys() - _reported.keys()):
        if name.startswith(PREFIX) and not OF_KUBERNETES.search(name):
            suggestion = _suggestion(name, fields)
            _reported[name] = suggestion.strip()
            log.warning("%s is ignored: there is no such setting.%s", name, suggestion)


def unknown_variables() -> dict[str, str]:
    """Variables of this process or its `.env` that look like settings and are none, with the nearest name or ""."""
    return dict(_reported)


def _invalid_setting(
    exc: ValidationError | SettingsError, fields: Fields, given: Iterable[str]
) -> errors.InvalidSettings:
    """The first fault in one line: the variable, the reason, the remedy, and the value unless it is secret.

    One of the `given` arguments is named as the argument.
    Of a value within a JSON object, its path (`acme.usd_per_day`) is the value that the error names.
    """
    variables = {name: variable for variable, name in _variables(fields).items()}
    if isinstance(exc, SettingsError):  # its text has the setting's name, and no value
        name = next(name for name in fields if f'"{name}"' in str(exc))
        example = '{"a": …}' if "Mapping" in str(fields[name].annotation) else '["a", "b"]'
        kind = "an object" if example.startswith("{") else "a list"
        return errors.InvalidSettings(variables[name], "***", f"not valid JSON. Write {kind} such as {example}.")
    first = exc.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0])
    name = _variables(fields).get(name, name)
    value, why = first["input"], f"{first['msg'][0].lower()}{first['msg'][1:]}."
    path = [part for part in first["loc"][1:] if isinstance(part, str)]
    if "SecretStr" in str(fields[name].annotation):
        value, why = "***", "".join(f"{part}: " for part in path) + why
    elif first["type"] == "extra_forbidden":
        known = _nested_fields(fields[name].annotation)
        near = nearest_name(path[-1], known)
        suggestion = f" Did you mean {near}?" if near else ""
        value, why = ".".join(path), f"no such field. Valid: {', '.join(known)}.{suggestion}"
    elif path:
        value, why = ".".join(path), f"{why.removesuffix('.')}, not {repr(value)[:80]}."
    default = "none" if fields[name].default in (None, ()) else fields[name].default
    is_argument = name in given
    remove = "leave it out" if is_argument else "unset it"
    field = name if is_argument else variables[name]
    return errors.InvalidSettings(field, value, f"{why} Correct it, or {remove} for the default ({default}).")


def _nested_fields(annotation: object) -> list[str]:
    """The fields of the model within a type, such as `Mapping[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    return [name for each in get_args(annotation) for name in _nested_fields(each)]


MAX_DIMENSION = 4_000  # of a vector


class ModelBudget(BaseModel):
    """What the models of one namespace may use in a day (UTC). 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tokens_per_day: int = Field(0, ge=0, strict=True)
    usd_per_day: float = Field(0.0, ge=0)

    def reached_limit(self, *, tokens: int, usd: float) -> tuple[str, float] | None:
        """The limit that is reached, with its unit; None if there is none."""
        if 0 < self.tokens_per_day <= tokens:
            return "tokens a day", self.tokens_per_day
        return ("US dollars a day", self.usd_per_day) if 0 < self.usd_per_day <= usd else None


class ModelPrice(BaseModel):
    """US dollars per million tokens of a model. 0: it costs nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(default=0.0, ge=0)


class Settings(BaseSettings):
    """All settings, from the environment (`AFTERMIND_*`), a `.env` file or keyword arguments. Frozen.

    No setting is required: `Memory()` finds the embedded stack in the state folder.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,  # Compose sets a variable that it was not given to ""
        extra="ignore",
        frozen=True,
    )

    _connections: Mapping[str, database_map.Connections] = PrivateAttr({})
    _moved: database_map.Moved = PrivateAttr(default_factory=database_map.Moved)  # shared by copies of the settings

    def __init__(self, **values: Any) -> None:  # Any: pydantic checks each
        fields = type(self).model_fields
        for name in values.keys() - fields.keys():
            if not name.startswith("_") and name not in _variables(fields):  # `_env_file` and the like are pydantic's
                raise errors.InvalidSettings(name, values[name], f"no such setting.{_suggestion(name, fields)}")
        given = {_argument(name, fields[name]) if name in fields else name: value for name, value in values.items()}
        try:
            super().__init__(**given)
        except (ValidationError, SettingsError) as exc:
            # from None: pydantic's error quotes all values, secrets among them, on 40 lines
            raise _invalid_setting(exc, fields, given=values) from None
        except OSError as exc:
            why = f"{exc.strerror}. Let this user read it, or start the process in another folder."
            raise errors.InvalidSettings(".env", exc.filename, why) from exc
        if self.heartbeat_seconds >= self.lease_seconds:
            why = f"a lease of {self.lease_seconds:g} s (AFTERMIND_LEASE_SECONDS) would end before it is renewed. A third of it is usual."
            raise errors.InvalidSettings("AFTERMIND_HEARTBEAT_SECONDS", self.heartbeat_seconds, why)
        self._choose_database()
        check_rules("AFTERMIND_NAMESPACE_LANGUAGES", self.namespace_languages)
        check_rules("AFTERMIND_NAMESPACE_BUDGETS", self.namespace_budgets)
        for name in self.model_prices:
            if not name or name != name.strip():
                why = "a price has the name of a model, without spaces around it: `MODEL` or `KIND:MODEL`."
                raise errors.InvalidSettings("AFTERMIND_MODEL_PRICES", name, why)

    def _choose_database(self) -> None:
        default = {name: getattr(self, name) for name in database_map.FIELDS}
        self._connections = database_map.connections(self.databases, default, prefix=self.redis_prefix)
        database_map.check_placement(self.placement, self._connections)
        if self.database not in self._connections:
            why = f"there is no such database. {database_map.VARIABLE} has {', '.join(sorted(self._connections))}."
            raise errors.InvalidSettings("AFTERMIND_DATABASE", self.database, why)
        self.__dict__.update(self._connections[self.database])  # frozen for others, not for the constructor

    def of_database(self, name: str) -> Self:
        """These settings with the connections of another database of the map."""
        return self.model_copy(update={**self._connections[name], "database": name})

    @property
    def database_names(self) -> tuple[str, ...]:
        """The databases that tenants are placed in, `default` first."""
        return tuple(self._connections) if self.databases else (database_map.DEFAULT,)

    def database_for(self, namespace: str) -> str:
        """The name of the database where a namespace is placed."""
        if not self.databases:
            return self.database
        return self._moved.databases.get(namespace) or database_map.place(self.placement, namespace)

    @property
    def moved(self) -> database_map.Moved:
        """What this process has learned about tenants that were moved to another database of the map."""
        return self._moved

    def follow_move(self, namespace: str, database: str) -> None:
        """Note that a namespace has moved to another database. Raises `InvalidSettings` if the map does not have it."""
        if database not in self._connections:
            why = f"namespace {namespace!r} has moved there. Add it to {database_map.VARIABLE}, and restart."
            raise errors.InvalidSettings(database_map.VARIABLE, database, why)
        self._moved.databases[namespace] = database

    def follow_moves(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Note the moves that databases report: by database, the namespaces that have left it, and where they are.

        A database decides about tenants that are placed in it, and about no others.
        """
        for _ in found:  # a tenant may have moved on from there
            for name, moves in found.items():
                for namespace, database in moves.items():
                    if self.database_for(namespace) == name:
                        self.follow_move(namespace, database)

    def language_for(self, namespace: str) -> str:
        """The language of a namespace's texts."""
        return match_rule(self.namespace_languages, namespace) or self.language

    def budget_for(self, namespace: str) -> ModelBudget:
        """The budget of a namespace: what its rule does not state is as for all."""
        default = {"tokens_per_day": self.namespace_tokens_per_day, "usd_per_day": self.namespace_usd_per_day}
        rule = match_rule(self.namespace_budgets, namespace)
        return ModelBudget(**default | ({} if rule is None else rule.model_dump(exclude_unset=True)))

    @property
    def has_budgets(self) -> bool:
        """Whether any namespace may have a budget."""
        return bool(self.namespace_tokens_per_day or self.namespace_usd_per_day or self.namespace_budgets)

    def check_placed_here(self, namespace: str) -> None:
        """Raise `InvalidScope` for a namespace of another database, `TenantMoved` for one that has moved there."""
        placed = self.database_for(namespace)
        if placed == self.database:
            return
        if namespace in self._moved.databases:
            raise errors.TenantMoved(namespace, database=placed, other=placed)
        why = f"AFTERMIND_PLACEMENT places it in database {placed!r}, and this is {self.database!r}."
        raise errors.InvalidScope("namespace", namespace, why)

    @property
    def spool_dir(self) -> Path:
        """Folder of turns that this host keeps until the Redis of this database answers."""
        return self._folder_of_database("spool")

    @property
    def audit_dir(self) -> Path:
        """Folder with the ends of the audit trails of this database."""
        return self._folder_of_database("audit")

    def _folder_of_database(self, name: str) -> Path:
        return self.state_dir / (name if self.database == database_map.DEFAULT else f"{name}-{self.database}")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Precedence: arguments, then the environment, then files that it names, then `.env`."""
        _check_dotenv(Path(".env"))
        dotenv = dotenv_settings.env_vars if isinstance(dotenv_settings, DotEnvSettingsSource) else {}
        _warn_of_unknown_variables([*os.environ, *dotenv], settings_cls.model_fields)
        of_dotenv = (dotenv_settings,) if dotenv else ()
        environment = _Environment(settings_cls)
        is_usual = settings_cls is Settings and _options(env_settings) == _options(environment)
        return (
            init_settings,
            environment if is_usual else env_settings,
            _Files(settings_cls, dotenv),
            *of_dotenv,
        )

    # connections and state
    database_url: SecretStr | None = Field(
        None,
        description="Store: Postgres primary (several hosts for failover), `sqlite:PATH`, `json:PATH` or `inmemory`. None: the embedded stack.",
    )
    relay_url: SecretStr | None = Field(
        None,
        description="Postgres URL of a member of `aftermind_relay`, for workers and operator commands; it reads the jobs and events of every tenant. None: `database_url`.",
    )
    databases: Mapping[str, Mapping[str, SecretStr | tuple[SecretStr, ...]]] = Field(
        {},
        description='Further Postgres databases by name, as JSON: `{"eu": {"database_url": "…", "relay_url": "…"}}`. Each may also have `migrator_url`, `replica_urls`, `broker_url`, `redis_url`, `index_url`. Empty: one database.',
    )
    placement: Mapping[str, str] = Field(
        {},
        description='Where namespaces are, as JSON: `{"acme": "eu", "team-*": "eu"}`. A name has precedence over a prefix, a longer prefix over a shorter one. Others are in the database `default`, which is `database_url`.',
    )
    database: str = Field(
        database_map.DEFAULT,
        description="Of `databases`: the one that a worker, a reconciler or an operator command serves. Agents and the web service serve all.",
    )
    migrator_url: SecretStr | None = Field(
        None,
        description="Postgres URL of the schema's owner, for `aftermind migrate` and `reembed`, and for `doctor`, `forget --prove` and `verify-erasure`, which see all tables by it. None: `database_url`.",
    )
    database_password_file: Path | None = Field(
        None,
        description="File with the Postgres password of this process's role, for each Postgres URL of the settings that has none. It is read for each new connection, so a rotated password needs no restart. A URL may name another file: `?password_file=/path`.",
    )
    allow_owner: bool = Field(
        False, description="Accept a database role that bypasses row-level security: a superuser or the owner."
    )
    database_pooler: bool = Field(
        False,
        description="Set it if Postgres is behind a pooler in transaction mode (pgbouncer): no session state is used.",
    )
    replica_urls: tuple[SecretStr, ...] = Field(
        (), description="Streaming replicas for recall, as a JSON list. Empty: recall reads the primary."
    )
    broker_url: SecretStr | None = Field(
        None,
        description="Celery's broker: `redis://`, `unix://`, `sentinel://h1,h2,h3/service`, or `amqp://` (several URLs separated by `;`); no Redis Cluster. A Redis that is only the broker may be of any version that Celery supports, but the users of `aftermind redis-acl` need Redis 7 or Valkey there, too. None: `redis_url`, else the embedded stack's Redis; stores without Postgres run jobs without Celery.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="Redis 7 or later, or Valkey, for pending turns, watermarks and events, also `sentinel://h1,h2,h3/service`, or `redis+cluster://h1,h2,h3`, which needs a separate broker. None: the embedded stack's Redis where the stack is the store, else the broker, if it is a Redis.",
    )
    index_url: SecretStr | None = Field(
        None,
        description="An external vector index, the same for agents and workers: `qdrant://…`, `chroma+http://…`, `redis://…`, `pinecone:INDEX`, `mem0:…`, or a folder of one process (`qdrant:PATH`, `chroma:PATH`). None: the store's own search.",
    )
    redis_prefix: str = Field(
        "aftermind:", description="Prefix of every Redis key and queue, so that several systems can share a Redis."
    )
    state_dir: Path = Field(
        Path(".aftermind"), description="Folder of the spool and the embedded stack. Use a persistent disk."
    )
    encryption_key: SecretStr | None = Field(
        None,
        description="Master key of encrypted namespaces (`aftermind encrypt`), the same on every host. Several keys are separated by commas; the first one encrypts. None: `encryption.key` in `state_dir`, created at first use. `openssl rand -hex 32` makes one.",
    )
    audit_key: SecretStr | None = Field(
        None,
        description="Key of the audit trail, the same on every host. After a key change, list several separated by commas; the first one signs new entries. None: `audit.key` in `state_dir`, created at first use.",
    )
    namespace: str = Field("default", description="Namespace (tenant) of calls that name none.")

    # accepting a turn
    accept: Literal["redis", "postgres"] = Field(
        "redis",
        description="Where a turn must be stored before remember() returns. `redis`: in Redis's append-only file. `postgres`: committed in Postgres, 1-3 ms, survives the loss of Redis.",
    )
    remember_budget_seconds: float = Field(
        0.5, gt=0, description="Longest time that remember() waits for Redis before it spools to disk."
    )
    message_max_bytes: int = Field(
        262_144, gt=0, description="Largest message, as UTF-8. 256 KiB holds a long document."
    )
    turn_max_messages: int = Field(1_000, gt=0, description="Maximum number of messages of one remember().")
    turn_max_bytes: int = Field(
        1_048_576,
        gt=0,
        description="Maximum text and metadata of one remember(), in bytes. A turn is one Redis command and one transaction, so other tenants wait for a large one.",
    )
    metadata_max_bytes: int = Field(16_384, gt=0, description="Largest metadata of a message, as JSON.")
    metadata_max_depth: int = Field(8, gt=0, description="Maximum nesting depth of a message's metadata.")
    future_tolerance_seconds: float = Field(
        86_400,
        ge=0,
        description="How far `occurred_at` may be in the future; one day allows for time zone mistakes.",
    )
    pending_max_turns: int = Field(
        1_000_000,
        gt=0,
        description="Maximum number of pending turns of all users; beyond it, `when_full` applies.",
    )
    pending_max_bytes: int = Field(
        1_073_741_824, gt=0, description="Maximum size of all pending turns. 1 GiB fits into a small Redis."
    )
    pending_max_age_seconds: float = Field(
        3_600,
        gt=0,
        description="Age of the oldest pending turn beyond which `when_full` applies: workers are down or too few.",
    )
    pending_max_turns_per_user: int = Field(
        100_000,
        gt=0,
        description="Maximum number of pending turns of one user, so that one user cannot use all the space.",
    )
    when_full: Literal["spool", "refuse"] = Field(
        "spool", description="Beyond a limit of pending turns: store the turn on local disk, or raise QueueFull."
    )
    pending_recalled: int = Field(
        200,
        ge=0,
        description="Maximum number of pending turns that a recall reads, newest first; `degraded` reports if there are more. 0: none.",
    )
    spool_max_bytes: int = Field(
        268_435_456,
        ge=0,
        description="Maximum size of the spool on local disk while Redis is unavailable. 0: no spool.",
    )
    ring_every_turn: bool = Field(
        False, description="Send a doorbell for each turn, even if enough are queued already."
    )

    # deadlines
    db_timeout_seconds: float = Field(5.0, gt=0, description="Longest wait for one statement of a worker or a write.")
    db_connect_timeout_seconds: float = Field(2.0, gt=0, description="Longest wait for a new database connection.")
    db_pool_size: int = Field(10, gt=0, description="Connections to each database node per process.")
    redis_timeout_seconds: float = Field(
        0.5, gt=0, description="Longest wait for one answer of Redis on the agent's side."
    )
    recall_budget_seconds: float = Field(
        1.0, gt=0, description="Longest time of a recall; if a part is missing then, the block is `degraded`."
    )
    query_embedding_budget_seconds: float = Field(
        0.3, gt=0, description="Longest wait for the query's vector; beyond it recall is lexical only and `degraded`."
    )
    index_budget_seconds: float = Field(
        0.3, gt=0, description="Longest wait of a recall for the vector index; beyond it the store's own search serves."
    )
    model_timeout_seconds: float = Field(60.0, gt=0, description="Longest model call of a job, retries included.")

    # recall
    recall_token_budget: int = Field(1_000, gt=0, description="Token budget of a block if the caller sets none.")
    recall_limit: int = Field(30, gt=0, description="Maximum number of episodes in a block.")
    recall_half_life_days: float = Field(
        0.0,
        ge=0,
        description="Age at which an episode's score is halved, unless the query names a period. 0: age does not matter.",
    )
    recall_feedback_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of `memory.feedback` in the order of matches: that of a natural logarithm, added to the log-odds of a match. 0: feedback does not matter; 0.5 is cautious.",
    )
    replica_max_lag_seconds: float = Field(
        30.0, gt=0, description="A replica with a larger lag is not used until it has caught up."
    )
    replica_check_seconds: float = Field(2.0, gt=0, description="Interval between checks of the replicas.")
    exact_search_max_rows: int = Field(
        8_000, ge=0, description="Users with up to this many episodes get an exact vector scan; others use HNSW."
    )
    language: str = Field(
        "english",
        description="Language of stemming and stop words: a Snowball algorithm, such as `german`. A text that is evidently in another language is also stemmed in that one. `simple`: no stemming.",
    )
    namespace_languages: Mapping[str, str] = Field(
        {},
        description='`language` of namespaces, as JSON: `{"acme": "german", "fr-*": "french"}`. A name has precedence over a prefix, a longer prefix over a shorter one. The same for agents and workers. Empty: `language` for all.',
    )
    vector_cache_seconds: float = Field(
        3_600, ge=0, description="How long a query's vector is cached in Redis. 0: no cache."
    )

    # models
    embedder: str = Field(
        "auto",
        description="`auto` (OpenAI with a key, else hash), `hash`, `openai:MODEL`, `voyage:MODEL`, `cohere:MODEL`, `local:PATH`, `off`. Of another dimension than usual: `hash:768`, `openai:MODEL:768`.",
    )
    extractor: str = Field(
        "auto",
        description="`auto` (OpenAI with a key, else rules), `rules`, `openai:MODEL`, `anthropic:MODEL`, `litellm:MODEL`, `off`.",
    )
    replay_models: tuple[str, ...] = Field(
        (),
        description="Models that a replay may use in addition to the configured one, as a JSON list. Empty: none.",
    )
    chat_model: str = Field("gpt-5-mini", description="Model of an Agent that names none, and of `openai` extraction.")
    embed_sentences: bool = Field(
        True,
        description="Embed the sentences of messages besides the whole, where the embedder compares meaning (not `hash`): answers that are one sentence of a message rank higher. Embeddings take about three times the space and twice the tokens.",
    )
    embedding_dimension: int | None = Field(
        None,
        gt=0,
        le=MAX_DIMENSION,
        description="Vector length. None: the embedder's own; of an unknown model of an OpenAI-compatible server 1,536.",
    )
    openai_api_key: SecretStr | None = Field(
        None, validation_alias="OPENAI_API_KEY", description="Key of OpenAI or of a compatible server."
    )
    openai_base_url: str | None = Field(
        None, validation_alias="OPENAI_BASE_URL", description="Any OpenAI-compatible server. None: OpenAI's own."
    )
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias="ANTHROPIC_API_KEY", description="Key of Anthropic, for `anthropic:MODEL`."
    )
    anthropic_base_url: str | None = Field(
        None, validation_alias="ANTHROPIC_BASE_URL", description="Address of Anthropic's API. None: its own."
    )
    litellm_base_url: str | None = Field(
        None,
        validation_alias="LITELLM_BASE_URL",
        description="Address of a LiteLLM proxy, for `litellm:MODEL`. None: each provider's own, with its own key variable.",
    )
    voyage_api_key: SecretStr | None = Field(
        None, validation_alias="VOYAGE_API_KEY", description="Key of Voyage AI, for `voyage:MODEL`."
    )
    voyage_base_url: str | None = Field(
        None, validation_alias="VOYAGE_BASE_URL", description="Address of Voyage AI's API. None: its own."
    )
    cohere_api_key: SecretStr | None = Field(
        None, validation_alias="COHERE_API_KEY", description="Key of Cohere, for `cohere:MODEL`."
    )
    cohere_base_url: str | None = Field(
        None, validation_alias="COHERE_BASE_URL", description="Address of Cohere's API. None: its own."
    )

    model_requests_per_minute: int = Field(
        0, ge=0, description="Calls to a model provider, all processes together; beyond it, jobs wait. 0: no limit."
    )
    model_tokens_per_minute: int = Field(
        0, ge=0, description="Estimated tokens sent to a model provider, all processes together. 0: no limit."
    )

    namespace_tokens_per_day: int = Field(
        0,
        ge=0,
        description="Tokens (input and output, without embeddings) that language models may use for one namespace in a day (UTC); beyond it, its jobs wait. Calls that run at that moment end, and exceed it. 0: no limit.",
    )
    namespace_usd_per_day: float = Field(
        0.0,
        ge=0,
        description="US dollars that models with a price may cost for one namespace in a day (UTC), embeddings included; beyond it, its jobs wait. A model without a price uses none of it: see `AFTERMIND_MODEL_PRICES`. 0: no limit.",
    )
    namespace_budgets: Mapping[str, ModelBudget] = Field(
        {},
        description='Other budgets of namespaces, as JSON: `{"acme": {"usd_per_day": 20}, "trial-*": {"usd_per_day": 0.5, "tokens_per_day": 100000}}`. A name has precedence over a prefix; a limit that a rule does not have is the one of all. The same for all processes.',
    )
    model_prices: Mapping[str, ModelPrice] = Field(
        {},
        description='US dollars per million tokens of models without a published price, or with another one, as JSON: `{"my-model": {"input": 0.5, "output": 2}}`; `openai:my-model` is that of one provider and has precedence; an embedder has no `output`, and 0 is a model that costs nothing. Without a price the cost is unknown, and no budget of dollars counts it. The same for all processes.',
    )
    profile_mode: Literal["update", "replace"] = Field(
        "update",
        description="What new traits do to a profile. `update`: other traits stay. `replace`: the profile is what the last update found.",
    )
    profile_schema: str | None = Field(
        None,
        description="Traits of a profile: `module:Model` of a Pydantic model that the workers can import, or a JSON schema. None: the model proposes traits.",
    )

    # jobs
    run_jobs: bool = Field(
        True,
        description="Whether a process that opens a store of several processes (`sqlite:`, `redis://`, `mongodb://`, `sql+…`) runs its jobs. False leaves them to `aftermind worker`, as `broker_url` does.",
    )
    lease_seconds: float = Field(
        30.0, gt=0, description="Lifetime of a lease on a job; a crashed worker is detected after this time."
    )
    heartbeat_seconds: float = Field(
        10.0, gt=0, description="Interval between renewals of a running job's lease; less than `lease_seconds`."
    )
    max_attempts: int = Field(
        8,
        gt=0,
        description="Attempts before a job is a dead letter: about 20 minutes of back-off, without pauses of a provider.",
    )
    max_lost_leases: int = Field(
        3, gt=0, description="Lost leases before a job is dead-lettered; a rolling restart can cause two."
    )
    backoff_base_seconds: float = Field(1.0, gt=0, description="First wait after a failure; it doubles, with jitter.")
    backoff_cap_seconds: float = Field(600.0, gt=0, description="Longest wait between two attempts.")
    metric_history: bool = Field(
        True,
        description="Sample metrics into Postgres: by minute for a day, by hour for 30 days. Agents add their recalls once a minute.",
    )
    reconcile_seconds: float = Field(2.0, gt=0, description="Interval between searches for unclaimed jobs.")
    store_batch_turns: int = Field(100, gt=0, description="Maximum number of turns of one store transaction.")
    store_batch_bytes: int = Field(
        262_144, gt=0, description="Maximum size of one store transaction, in bytes; a larger turn is alone."
    )
    embed_batch_texts: int = Field(
        256, gt=0, description="Maximum number of texts of one embedding call, if the embedder allows as many."
    )
    extract_quiet_seconds: float = Field(
        6.0,
        ge=0,
        description="Facts are extracted after this time without a new turn in the session, so that a burst of turns is one model call.",
    )
    extract_max_wait_seconds: float = Field(
        25.0, ge=0, description="Longest time that a turn waits for extraction while further turns arrive."
    )
    learn_procedures: bool = Field(
        False,
        description="Make procedures of sentences of the user as `When I ask for a summary, please use bullet points.` (English); blocks show them in the section `procedures`.",
    )
    extract_max_turns: int = Field(
        20, gt=0, description="Maximum number of turns of one extraction call; the rest follows in another call."
    )
    extract_max_tokens: int = Field(6_000, gt=0, description="Maximum tokens of turns in one extraction call.")
    summary_turns: int = Field(
        20, gt=0, description="A session's summary is updated when this number of turns is not in it."
    )
    summary_quiet_seconds: float = Field(
        180.0, ge=0, description="A summary is also updated after this time without a new turn."
    )
    summary_max_wait_seconds: float = Field(600.0, ge=0, description="Longest delay of a summary while turns arrive.")
    summary_max_tokens: int = Field(8_000, gt=0, description="Maximum tokens of turns in one summary call.")
    profile_quiet_seconds: float = Field(
        180.0, ge=0, description="A profile is updated after this time without a new extraction for its user."
    )
    profile_max_wait_seconds: float = Field(
        600.0, ge=0, description="Longest delay of a profile update while turns arrive."
    )
    profile_max_tokens: int = Field(8_000, gt=0, description="Maximum tokens of turns in one profile call.")
    job_retention_days: float = Field(
        30.0,
        gt=0,
        description="How long completed jobs are kept; longer than any turn stays in the spool or in pending.",
    )
    attempt_retention_days: float = Field(
        30.0, gt=0, description="How long the attempts of finished jobs are kept; those of dead letters stay with them."
    )
    event_retention_days: float = Field(7.0, gt=0, description="How long events are kept for listeners that reconnect.")
    tombstone_retention_days: float = Field(
        90.0,
        gt=0,
        description="How long tombstones of forgotten content reject late copies of it; longer than a host with a spool may be offline.",
    )
    audit_retention_days: float = Field(
        365.0,
        ge=30,
        description="How long entries of the audit trail are kept. Entries younger than 30 days cannot be deleted.",
    )
    retention_every_seconds: float = Field(
        86_400.0,
        gt=0,
        description="Interval between runs of the retention policies (`aftermind retention`), and from setting or changing one to its first run. Each run rebuilds the summaries of sessions that lose turns.",
    )
    housekeeping_seconds: float = Field(
        60.0, gt=0, description="Interval between deletions of old rows: finished jobs, attempts, events, tombstones."
    )

    # webhooks
    webhook_patience_hours: float = Field(
        72.0,
        gt=0,
        description="A webhook that accepts no event for this time is disabled; shorter than `event_retention_days`.",
    )
    webhook_allow_private: bool = Field(
        False,
        description="Allow webhooks to private networks and to this machine, also over plain HTTP, for your own receivers.",
    )
    webhook_key: SecretStr | None = Field(
        None,
        description="Keys that encrypt webhooks' secrets, 32 bytes each as URL-safe base64, separated by commas: the first one encrypts, all decrypt. The same for web processes and workers. None: `webhook.key` in `state_dir`, created when needed.",
    )

    # process
    shutdown_grace_seconds: float = Field(
        20.0,
        gt=0,
        description="After SIGTERM, jobs that still run after this time are released. Kubernetes kills after 30.",
    )
    ready_file: Path | None = Field(
        None, description="File that a worker or reconciler creates when it is ready, for its supervisor."
    )
    worker_max_memory_bytes: int = Field(
        1_073_741_824, gt=0, description="A worker process that uses more memory finishes its jobs and stops."
    )
    metrics_host: str = Field("127.0.0.1", description="Address on which a worker or reconciler serves its metrics.")
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port on which a worker or reconciler serves its Prometheus metrics, one process per port. 0: none; `/metrics` of the service includes the processes that share its PROMETHEUS_MULTIPROC_DIR.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO",
        description="Lowest level that the service, workers, the reconciler and the MCP server log. An agent's process logs as its program configures.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Log lines of these processes: `json`, `text`, or `auto`: text on a terminal, else JSON."
    )
    tracing: bool = Field(
        False,
        description="Create OpenTelemetry spans, from `remember` to the model call. Agents use the tracer provider of their process; workers export by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    strict: bool = Field(False, description="Raise if an Agent's memory fails, instead of answering without it.")
    web_host: str = Field("127.0.0.1", description="Address on which the service listens.")
    web_port: int = Field(8377, ge=0, le=65535, description="Port of the service. 0: any free one.")
    web_cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call `/v1` from a browser, like `https://app.example`. Without cookies: with a stream token or an API key.",
    )
    web_max_listeners: int = Field(
        10_000,
        gt=0,
        description="Maximum number of event listeners of one web process, about 30 KB each. Further clients get HTTP 503.",
    )
    web_requests_per_key: int = Field(
        128, gt=0, description="Concurrent requests of one API key per web process; beyond it, HTTP 429."
    )
    web_streams_per_key: int = Field(
        2_000, gt=0, description="Event listeners of one API key per web process; beyond it, HTTP 429."
    )
    web_rate_per_key: float = Field(
        1_000.0,
        ge=0,
        description="Requests per second of one API key at all web processes together, with bursts of two seconds' worth; beyond it, HTTP 429. 0: no limit.",
    )
    web_header_timeout_seconds: float = Field(
        10.0, gt=0, description="Longest time for a client to send the headers of a request; then it is disconnected."
    )
    web_body_timeout_seconds: float = Field(
        60.0, gt=0, description="Longest time for a client to send the body of a request, counted from its headers."
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="Bearer token for `/metrics` of the service, which has counts of all tenants. None or empty: only the local token is accepted, until the first API key is created; then nothing is.",
    )
    flower_port: int = Field(5577, ge=0, le=65535, description="Port of Flower. 0: any free one.")
    flower_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="URL of Flower for browsers, linked from the console. None: no link; the embedded stack sets it.",
    )
