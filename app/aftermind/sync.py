"""The blocking client, for programs without an event loop.

Every call runs on one event loop in a background thread (`api.blocking_portal`), so all threads of the process share a
`Memory` and its connections.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from aftermind import errors
from aftermind.agent import Agent as AsyncAgent
from aftermind.agent import Tool
from aftermind.agent.agent import DEFAULT_INSTRUCTIONS
from aftermind.agent.function_tools import Function
from aftermind.api import blocking_portal
from aftermind.api.api_keys import ApiKeys as AsyncApiKeys
from aftermind.api.audit import Audit as AsyncAudit
from aftermind.api.blocks import Blocks as AsyncBlocks
from aftermind.api.checkpoints import Checkpoints as AsyncCheckpoints
from aftermind.api.encryption import Encryption as AsyncEncryption
from aftermind.api.facts import Facts as AsyncFacts
from aftermind.api.groups import Groups as AsyncGroups
from aftermind.api.items import Items as AsyncItems
from aftermind.api.job_admin import JobAdmin as AsyncJobAdmin
from aftermind.api.jobs import Jobs as AsyncJobs
from aftermind.api.ranking import Ranking as AsyncRanking
from aftermind.api.reembed import Reembeddings as AsyncReembeddings
from aftermind.api.retention.policies import Retention as AsyncRetention
from aftermind.api.tenants import Tenants as AsyncTenants
from aftermind.api.webhooks import Webhooks as AsyncWebhooks
from aftermind.ledger.inmemory.dead_letters import InMemoryDeadLetters
from aftermind.ledger.inmemory.replays import InMemoryReplays
from aftermind.ledger.postgres.dead_letters import DeadLetters as AsyncDeadLetters
from aftermind.ledger.postgres.replay_plans import Replays as AsyncReplays
from aftermind.llm.protocols import ChatModel
from aftermind.memory import Memory as AsyncMemory
from aftermind.receipt import Receipt as AsyncReceipt
from aftermind.settings import Settings
from aftermind.types import EpisodeId, JobId

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")


class _Face:
    """A blocking object and its asynchronous counterpart."""

    _behind: Any  # Any: the asynchronous object, whose methods are found by name

    def __repr__(self) -> str:
        return repr(self._behind)


def _blocking(method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    # Any: a coroutine's send and yield types; the class that gets the method
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, Coroutine[Any, Any, T]] = getattr(self._behind, method.__name__)
        return blocking_portal.call(partial(bound, *args, **kwargs))

    return call


def _iterating(method: Callable[Concatenate[F, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    # Any: the class that gets the method
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        bound: Callable[P, AsyncIterator[T]] = getattr(self._behind, method.__name__)
        return blocking_portal.iterate(partial(bound, *args, **kwargs))

    return call


def _handing_over(
    method: Callable[Concatenate[F, P], Coroutine[Any, Any, AsyncReceipt]],
) -> Callable[Concatenate[Any, P], "Receipt"]:  # Any: as in `_blocking`
    call = _blocking(method)

    @wraps(method)
    def hand_over(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        return Receipt(call(self, *args, **kwargs))

    return hand_over


def _constructor(
    method: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of another one, for type checkers and `inspect`."""  # Any: the classes
    return wraps(method)


class Receipt(_Face):
    """`aftermind.Receipt`, without await."""

    def __init__(self, behind: AsyncReceipt) -> None:
        self._behind = behind

    job_id: JobId = property(lambda self: self._behind.job_id)  # type: ignore[assignment]
    episode_ids: tuple[EpisodeId, ...] = property(lambda self: self._behind.episode_ids)  # type: ignore[assignment]
    spooled: bool = property(lambda self: self._behind.spooled)  # type: ignore[assignment]

    stored = _blocking(AsyncReceipt.stored)
    embedded = _blocking(AsyncReceipt.embedded)
    extracted = _blocking(AsyncReceipt.extracted)
    status = _blocking(AsyncReceipt.status)


class Facts(_Face):
    """`memory.facts`, without await."""

    def __init__(self, behind: AsyncFacts) -> None:
        self._behind = behind

    query = _blocking(AsyncFacts.query)
    history = _blocking(AsyncFacts.history)
    add = _blocking(AsyncFacts.add)
    retract = _blocking(AsyncFacts.retract)
    correct = _blocking(AsyncFacts.correct)
    restore = _blocking(AsyncFacts.restore)
    why = _blocking(AsyncFacts.why)
    graph = _blocking(AsyncFacts.graph)
    merge_entities = _blocking(AsyncFacts.merge_entities)
    cardinalities = _blocking(AsyncFacts.cardinalities)
    set_cardinality = _blocking(AsyncFacts.set_cardinality)


class Blocks(_Face):
    """`memory.blocks`, without await."""

    def __init__(self, behind: AsyncBlocks) -> None:
        self._behind = behind

    get = _blocking(AsyncBlocks.get)
    set = _blocking(AsyncBlocks.set)
    append = _blocking(AsyncBlocks.append)
    replace = _blocking(AsyncBlocks.replace)
    rename = _blocking(AsyncBlocks.rename)
    delete = _blocking(AsyncBlocks.delete)
    list = _blocking(AsyncBlocks.list)


class Items(_Face):
    """`memory.items`, without await."""

    def __init__(self, behind: AsyncItems) -> None:
        self._behind = behind

    get = _blocking(AsyncItems.get)
    write = _blocking(AsyncItems.write)
    search = _blocking(AsyncItems.search)
    paths = _blocking(AsyncItems.paths)


class Checkpoints(_Face):
    """`memory.checkpoints`, without await."""

    def __init__(self, behind: AsyncCheckpoints) -> None:
        self._behind = behind

    save = _blocking(AsyncCheckpoints.save)
    get = _blocking(AsyncCheckpoints.get)
    resume = _blocking(AsyncCheckpoints.resume)
    delete = _blocking(AsyncCheckpoints.delete)
    list = _blocking(AsyncCheckpoints.list)


class Groups(_Face):
    """`memory.groups`, without await."""

    def __init__(self, behind: AsyncGroups) -> None:
        self._behind = behind

    add = _blocking(AsyncGroups.add)
    remove = _blocking(AsyncGroups.remove)
    export = _blocking(AsyncGroups.export)
    members = _blocking(AsyncGroups.members)
    delete = _blocking(AsyncGroups.delete)
    list = _blocking(AsyncGroups.list)


class Ranking(_Face):
    """`memory.ranking`, without await."""

    def __init__(self, behind: AsyncRanking) -> None:
        self._behind = behind

    get = _blocking(AsyncRanking.get)
    set = _blocking(AsyncRanking.set)
    delete = _blocking(AsyncRanking.delete)
    candidates = _blocking(AsyncRanking.candidates)


class Jobs(_Face):
    """`memory.jobs`, without await."""

    def __init__(self, behind: AsyncJobs) -> None:
        self._behind = behind

    list = _blocking(AsyncJobs.list)
    get = _blocking(AsyncJobs.get)
    status = _blocking(AsyncJobs.status)


class ApiKeys(_Face):
    """`memory.api_keys`, without await."""

    def __init__(self, behind: AsyncApiKeys) -> None:
        self._behind = behind

    create = _blocking(AsyncApiKeys.create)
    list = _blocking(AsyncApiKeys.list)
    revoke = _blocking(AsyncApiKeys.revoke)
    create_stream_token = _blocking(AsyncApiKeys.create_stream_token)
    check_stream_token = _blocking(AsyncApiKeys.check_stream_token)
    check = _blocking(AsyncApiKeys.check)
    any = _blocking(AsyncApiKeys.any)


class Webhooks(_Face):
    """`memory.webhooks`, without await."""

    def __init__(self, behind: AsyncWebhooks) -> None:
        self._behind = behind

    create = _blocking(AsyncWebhooks.create)
    list = _blocking(AsyncWebhooks.list)
    get = _blocking(AsyncWebhooks.get)
    delete = _blocking(AsyncWebhooks.delete)
    rotate_secret = _blocking(AsyncWebhooks.rotate_secret)
    enable = _blocking(AsyncWebhooks.enable)


class JobAdmin(_Face):
    """`memory.job_admin`, without await."""

    def __init__(self, behind: AsyncJobAdmin) -> None:
        self._behind = behind

    list = _blocking(AsyncJobAdmin.list)
    pending_turns = _blocking(AsyncJobAdmin.pending_turns)
    counts = _blocking(AsyncJobAdmin.counts)
    latencies = _blocking(AsyncJobAdmin.latencies)
    tenants = _blocking(AsyncJobAdmin.tenants)
    costs = _blocking(AsyncJobAdmin.costs)
    processes = _blocking(AsyncJobAdmin.processes)
    metric_history = _blocking(AsyncJobAdmin.metric_history)
    timeline = _blocking(AsyncJobAdmin.timeline)
    messages = _blocking(AsyncJobAdmin.messages)
    apply = _blocking(AsyncJobAdmin.apply)
    undo = _blocking(AsyncJobAdmin.undo)
    pause = _blocking(AsyncJobAdmin.pause)
    resume = _blocking(AsyncJobAdmin.resume)
    pauses = _blocking(AsyncJobAdmin.pauses)
    hold_reasons = _blocking(AsyncJobAdmin.hold_reasons)


class DeadLetters(_Face):
    """`memory.dead_letters`, without await."""

    def __init__(self, behind: AsyncDeadLetters | InMemoryDeadLetters) -> None:
        self._behind = behind

    list = _blocking(AsyncDeadLetters.list)
    groups = _blocking(AsyncDeadLetters.groups)
    get = _blocking(AsyncDeadLetters.get)
    discard = _blocking(AsyncDeadLetters.discard)


class Replays(_Face):
    """`memory.replays`, without await."""

    def __init__(self, behind: AsyncReplays | InMemoryReplays) -> None:
        self._behind = behind

    create = _blocking(AsyncReplays.create)
    list = _blocking(AsyncReplays.list)
    get = _blocking(AsyncReplays.get)
    list_items = _blocking(AsyncReplays.list_items)
    estimate = _blocking(AsyncReplays.estimate)
    dry_run = _blocking(AsyncReplays.dry_run)
    dry_run_results = _blocking(AsyncReplays.dry_run_results)
    record_access = _blocking(AsyncReplays.record_access)
    start = _blocking(AsyncReplays.start)
    pause = _blocking(AsyncReplays.pause)
    abort = _blocking(AsyncReplays.abort)


class Retention(_Face):
    """`memory.retention`, without await."""

    def __init__(self, behind: AsyncRetention) -> None:
        self._behind = behind

    get = _blocking(AsyncRetention.get)
    set = _blocking(AsyncRetention.set)
    clear = _blocking(AsyncRetention.clear)
    delete_expired = _blocking(AsyncRetention.delete_expired)
    run = _blocking(AsyncRetention.run)


class Audit(_Face):
    """`memory.audit`, without await."""

    def __init__(self, behind: AsyncAudit) -> None:
        self._behind = behind

    record = _blocking(AsyncAudit.record)
    list = _blocking(AsyncAudit.list)
    verify = _blocking(AsyncAudit.verify)


class Encryption(_Face):
    """`memory.encryption`, without await."""

    def __init__(self, behind: AsyncEncryption) -> None:
        self._behind = behind

    key_id = _blocking(AsyncEncryption.key_id)
    list = _blocking(AsyncEncryption.list)
    encrypt = _blocking(AsyncEncryption.encrypt)
    rotate = _blocking(AsyncEncryption.rotate)
    retire = _blocking(AsyncEncryption.retire)
    rewrap = _blocking(AsyncEncryption.rewrap)


class Reembeddings(_Face):
    """`memory.reembedding`, without await."""

    def __init__(self, behind: AsyncReembeddings) -> None:
        self._behind = behind

    plan = _blocking(AsyncReembeddings.plan)
    start = _blocking(AsyncReembeddings.start)
    status = _blocking(AsyncReembeddings.status)
    compare = _blocking(AsyncReembeddings.compare)
    cutover = _blocking(AsyncReembeddings.cutover)
    rollback = _blocking(AsyncReembeddings.rollback)
    drop = _blocking(AsyncReembeddings.drop)


class Tenants(_Face):
    """`memory.tenants`, without await."""

    def __init__(self, behind: AsyncTenants) -> None:
        self._behind = behind

    move = _blocking(AsyncTenants.move)
    abort = _blocking(AsyncTenants.abort)
    purge = _blocking(AsyncTenants.purge)


class Memory(_Face):
    """`aftermind.Memory`, without await. The same arguments; opened by `with`, closed by leaving it or by `close()`."""

    @_constructor(AsyncMemory.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: those of the async one, which checks them
        self._behind = AsyncMemory(*args, **kwargs)
        self.settings: Settings = self._behind.settings
        self.namespace: str = self._behind.namespace
        self.facts, self.blocks = Facts(self._behind.facts), Blocks(self._behind.blocks)
        self.items = Items(self._behind.items)
        self.jobs, self.api_keys = Jobs(self._behind.jobs), ApiKeys(self._behind.api_keys)
        self.checkpoints, self.groups = Checkpoints(self._behind.checkpoints), Groups(self._behind.groups)
        self.webhooks, self.ranking = Webhooks(self._behind.webhooks), Ranking(self._behind.ranking)
        behind = self._behind
        self.dead_letters, self.replays = DeadLetters(behind.dead_letters), Replays(behind.replays)
        self.job_admin = JobAdmin(behind.job_admin)
        self.retention, self.audit = Retention(behind.retention), Audit(behind.audit)
        self.encryption, self.reembedding = Encryption(behind.encryption), Reembeddings(behind.reembedding)
        self.tenants = Tenants(behind.tenants)

    remember = _handing_over(AsyncMemory.remember)
    feedback = _handing_over(AsyncMemory.feedback)
    recall = _blocking(AsyncMemory.recall)
    recall_scored = _blocking(AsyncMemory.recall_scored)
    explain = _blocking(AsyncMemory.explain)
    history = _blocking(AsyncMemory.history)
    context_window = _blocking(AsyncMemory.context_window)
    search = _blocking(AsyncMemory.search)
    get = _blocking(AsyncMemory.get)
    sessions = _blocking(AsyncMemory.sessions)
    session_metadata = _blocking(AsyncMemory.session_metadata)
    update_session_metadata = _blocking(AsyncMemory.update_session_metadata)
    users = _blocking(AsyncMemory.users)
    summary = _blocking(AsyncMemory.summary)
    profile = _blocking(AsyncMemory.profile)
    extraction = _blocking(AsyncMemory.extraction)
    spending = _blocking(AsyncMemory.spending)
    events = _iterating(AsyncMemory.events)
    past_events = _blocking(AsyncMemory.past_events)
    event_cursor = _blocking(AsyncMemory.event_cursor)
    progress = _blocking(AsyncMemory.progress)
    drain = _blocking(AsyncMemory.drain)
    health = _blocking(AsyncMemory.health)
    forget = _blocking(AsyncMemory.forget)
    undo = _blocking(AsyncMemory.undo)
    verify_erasure = _blocking(AsyncMemory.verify_erasure)
    reindex = _iterating(AsyncMemory.reindex)
    export = _blocking(AsyncMemory.export)
    close = _blocking(AsyncMemory.close)

    def __enter__(self) -> Self:
        blocking_portal.call(self._behind.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Agent(_Face):
    """`aftermind.Agent`, without await. Its `memory` is a `Memory` of this module."""

    def __init__(
        self,
        instructions: str = DEFAULT_INSTRUCTIONS,
        *,
        model: str | ChatModel | None = None,
        memory: Memory | str | Mapping[str, Any] | None = None,
        tools: Sequence[Function | Tool] = (),
        agent_id: str | None = None,
        token_budget: int | None = None,
        history_messages: int = 20,
        max_steps: int = 8,
        strict: bool | None = None,
        save: frozenset[str] | set[str] | None = None,
        load: frozenset[str] | set[str] | None = None,
        feed_tool_call_results: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self.memory = Memory(memory, settings=settings) if isinstance(memory, str | Mapping) else memory
        if self.memory is not None and not isinstance(self.memory, Memory):
            why = "pass an `aftermind.sync.Memory`, a URL or a dict; `aftermind.Agent` takes an `aftermind.Memory`."
            raise errors.InvalidSettings("memory", type(memory).__qualname__, why)
        self._behind = AsyncAgent(
            instructions,
            model=model,
            memory=None if self.memory is None else self.memory._behind,
            tools=tools,
            agent_id=agent_id,
            token_budget=token_budget,
            history_messages=history_messages,
            max_steps=max_steps,
            strict=strict,
            save=save,
            load=load,
            feed_tool_call_results=feed_tool_call_results,
            settings=settings,
        )

    run = _blocking(AsyncAgent.arun)
    run_stream = _iterating(AsyncAgent.arun_stream)
