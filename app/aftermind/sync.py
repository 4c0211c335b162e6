"""The blocking client, for programs without an event loop.

Every call runs on one event loop in a background thread (`api.blocking_portal`), so all threads of the process share a
`Memory` and its connections.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from aftermind import errors
from aftermind.agent import Agent as AsyncAgent
from aftermind.agent import AgentEvent as AsyncAgentEvent
from aftermind.agent import AgentResult as AsyncAgentResult
from aftermind.agent import TextDelta, Tool, ToolCalled, ToolReturned
from aftermind.agent.agent import DEFAULT_INSTRUCTIONS
from aftermind.agent.function_tools import Function
from aftermind.api import blocking_portal
from aftermind.api.api_keys import ApiKeys as AsyncApiKeys
from aftermind.api.audit import Audit as AsyncAudit
from aftermind.api.blocking_portal import Blocking
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
from aftermind.events.types import MemoryEvent
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


def _blocking(method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    # Any: a coroutine's send and yield types; the class that gets the method
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, Coroutine[Any, Any, T]] = getattr(self._behind, method.__name__)
        return blocking_portal.call(partial(bound, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[F, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    # Any: the class that gets the method
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        bound: Callable[P, AsyncGenerator[T, None]] = getattr(self._behind, method.__name__)
        return blocking_portal.iterate(partial(bound, *args, **kwargs))

    return call


def _converting(method: Callable[P, T], to: Callable[[T], F]) -> Callable[P, F]:
    """The method, with its result as the type of this module."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> F:
        return to(method(*args, **kwargs))

    return call


def _constructor(
    method: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of another one, for type checkers and `inspect`."""  # Any: the classes
    return wraps(method)


class Receipt(Blocking[AsyncReceipt]):
    """`aftermind.Receipt`, without await."""

    job_id: JobId = property(lambda self: self._behind.job_id)  # type: ignore[assignment]
    episode_ids: tuple[EpisodeId, ...] = property(lambda self: self._behind.episode_ids)  # type: ignore[assignment]
    spooled: bool = property(lambda self: self._behind.spooled)  # type: ignore[assignment]

    stored = _blocking(AsyncReceipt.stored)
    embedded = _blocking(AsyncReceipt.embedded)
    extracted = _blocking(AsyncReceipt.extracted)
    status = _blocking(AsyncReceipt.status)


class Facts(Blocking[AsyncFacts]):
    """`memory.facts`, without await."""

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


class Blocks(Blocking[AsyncBlocks]):
    """`memory.blocks`, without await."""

    get = _blocking(AsyncBlocks.get)
    set = _blocking(AsyncBlocks.set)
    append = _blocking(AsyncBlocks.append)
    replace = _blocking(AsyncBlocks.replace)
    rename = _blocking(AsyncBlocks.rename)
    delete = _blocking(AsyncBlocks.delete)
    list = _blocking(AsyncBlocks.list)


class Items(Blocking[AsyncItems]):
    """`memory.items`, without await."""

    get = _blocking(AsyncItems.get)
    write = _blocking(AsyncItems.write)
    search = _blocking(AsyncItems.search)
    paths = _blocking(AsyncItems.paths)


class Checkpoints(Blocking[AsyncCheckpoints]):
    """`memory.checkpoints`, without await."""

    save = _blocking(AsyncCheckpoints.save)
    get = _blocking(AsyncCheckpoints.get)
    resume = _blocking(AsyncCheckpoints.resume)
    delete = _blocking(AsyncCheckpoints.delete)
    list = _blocking(AsyncCheckpoints.list)


class Groups(Blocking[AsyncGroups]):
    """`memory.groups`, without await."""

    add = _blocking(AsyncGroups.add)
    remove = _blocking(AsyncGroups.remove)
    export = _blocking(AsyncGroups.export)
    members = _blocking(AsyncGroups.members)
    delete = _blocking(AsyncGroups.delete)
    list = _blocking(AsyncGroups.list)


class Ranking(Blocking[AsyncRanking]):
    """`memory.ranking`, without await."""

    get = _blocking(AsyncRanking.get)
    set = _blocking(AsyncRanking.set)
    delete = _blocking(AsyncRanking.delete)
    candidates = _blocking(AsyncRanking.candidates)


class Jobs(Blocking[AsyncJobs]):
    """`memory.jobs`, without await."""

    list = _blocking(AsyncJobs.list)
    get = _blocking(AsyncJobs.get)
    status = _blocking(AsyncJobs.status)


class ApiKeys(Blocking[AsyncApiKeys]):
    """`memory.api_keys`, without await."""

    create = _blocking(AsyncApiKeys.create)
    list = _blocking(AsyncApiKeys.list)
    revoke = _blocking(AsyncApiKeys.revoke)
    create_stream_token = _blocking(AsyncApiKeys.create_stream_token)
    check_stream_token = _blocking(AsyncApiKeys.check_stream_token)
    check = _blocking(AsyncApiKeys.check)
    any = _blocking(AsyncApiKeys.any)


class Webhooks(Blocking[AsyncWebhooks]):
    """`memory.webhooks`, without await."""

    create = _blocking(AsyncWebhooks.create)
    list = _blocking(AsyncWebhooks.list)
    get = _blocking(AsyncWebhooks.get)
    delete = _blocking(AsyncWebhooks.delete)
    rotate_secret = _blocking(AsyncWebhooks.rotate_secret)
    enable = _blocking(AsyncWebhooks.enable)


class JobAdmin(Blocking[AsyncJobAdmin]):
    """`memory.job_admin`, without await."""

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


class DeadLetters(Blocking[AsyncDeadLetters | InMemoryDeadLetters]):
    """`memory.dead_letters`, without await."""

    list = _blocking(AsyncDeadLetters.list)
    groups = _blocking(AsyncDeadLetters.groups)
    get = _blocking(AsyncDeadLetters.get)
    discard = _blocking(AsyncDeadLetters.discard)


class Replays(Blocking[AsyncReplays | InMemoryReplays]):
    """`memory.replays`, without await."""

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


class Retention(Blocking[AsyncRetention]):
    """`memory.retention`, without await."""

    get = _blocking(AsyncRetention.get)
    set = _blocking(AsyncRetention.set)
    clear = _blocking(AsyncRetention.clear)
    delete_expired = _blocking(AsyncRetention.delete_expired)
    run = _blocking(AsyncRetention.run)


class Audit(Blocking[AsyncAudit]):
    """`memory.audit`, without await."""

    record = _blocking(AsyncAudit.record)
    list = _blocking(AsyncAudit.list)
    verify = _blocking(AsyncAudit.verify)


class Encryption(Blocking[AsyncEncryption]):
    """`memory.encryption`, without await."""

    key_id = _blocking(AsyncEncryption.key_id)
    list = _blocking(AsyncEncryption.list)
    encrypt = _blocking(AsyncEncryption.encrypt)
    rotate = _blocking(AsyncEncryption.rotate)
    retire = _blocking(AsyncEncryption.retire)
    rewrap = _blocking(AsyncEncryption.rewrap)


class Reembeddings(Blocking[AsyncReembeddings]):
    """`memory.reembedding`, without await."""

    plan = _blocking(AsyncReembeddings.plan)
    start = _blocking(AsyncReembeddings.start)
    status = _blocking(AsyncReembeddings.status)
    compare = _blocking(AsyncReembeddings.compare)
    cutover = _blocking(AsyncReembeddings.cutover)
    rollback = _blocking(AsyncReembeddings.rollback)
    drop = _blocking(AsyncReembeddings.drop)


class Tenants(Blocking[AsyncTenants]):
    """`memory.tenants`, without await."""

    move = _blocking(AsyncTenants.move)
    abort = _blocking(AsyncTenants.abort)
    purge = _blocking(AsyncTenants.purge)


class Memory(Blocking[AsyncMemory]):
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

    remember = _converting(_blocking(AsyncMemory.remember), Receipt)
    feedback = _converting(_blocking(AsyncMemory.feedback), Receipt)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult(AsyncAgentResult):
    """`aftermind.AgentResult`, whose receipt needs no await."""

    receipt: Receipt | None = None  # type: ignore[assignment]


AgentEvent = MemoryEvent | TextDelta | ToolCalled | ToolReturned | AgentResult


def _to_result(found: AsyncAgentResult) -> AgentResult:
    values = {each.name: getattr(found, each.name) for each in fields(found)}
    return AgentResult(**values | {"receipt": found.receipt and Receipt(found.receipt)})


def _to_events(events: Generator[AsyncAgentEvent, None, None]) -> Generator[AgentEvent, None, None]:
    with closing(events):
        for event in events:
            yield _to_result(event) if isinstance(event, AsyncAgentResult) else event


class Agent(Blocking[AsyncAgent]):
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

    run = _converting(_blocking(AsyncAgent.arun), _to_result)
    run_stream = _converting(_iterating(AsyncAgent.arun_stream), _to_events)
