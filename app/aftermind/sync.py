"""The same faces without `await`, for programs that have no event loop.

Every call runs on one loop in a thread of its own (`faces.portal`), so a `Memory` here and its connections are shared
by all threads of the process.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from aftermind.agent import Agent as AsyncAgent
from aftermind.faces import portal
from aftermind.faces.audit import Audit as AsyncAudit
from aftermind.faces.blocks import Blocks as AsyncBlocks
from aftermind.faces.encryption import Encryption as AsyncEncryption
from aftermind.faces.facts import Facts as AsyncFacts
from aftermind.faces.jobs import Jobs as AsyncJobs
from aftermind.faces.keys import Keys as AsyncKeys
from aftermind.faces.retention import Retention as AsyncRetention
from aftermind.faces.webhooks import Webhooks as AsyncWebhooks
from aftermind.ledger.replays import DeadLetters, Replays
from aftermind.memory import Memory as AsyncMemory
from aftermind.receipt import Receipt as AsyncReceipt
from aftermind.types import EpisodeId, JobId

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")


class _Face:
    """A face and the one behind it."""

    _behind: Any  # Any: the async face, whose methods are found by name


def _blocking(method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    # Any: a coroutine's send and yield types; the face that the method is put on
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, Coroutine[Any, Any, T]] = getattr(self._behind, method.__name__)
        return portal.call(partial(bound, *args, **kwargs))

    return call


def _iterating(method: Callable[Concatenate[F, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    # Any: the face that the method is put on
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        bound: Callable[P, AsyncIterator[T]] = getattr(self._behind, method.__name__)
        return portal.iterate(partial(bound, *args, **kwargs))

    return call


def _handing_over(
    method: Callable[Concatenate[F, P], Coroutine[Any, Any, AsyncReceipt]],
) -> Callable[Concatenate[Any, P], "Receipt"]:  # Any: as in `_blocking`
    call = _blocking(method)

    @wraps(method)
    def hand_over(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        return Receipt(call(self, *args, **kwargs))

    return hand_over


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
    why = _blocking(AsyncFacts.why)
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
    delete = _blocking(AsyncBlocks.delete)
    list = _blocking(AsyncBlocks.list)


class Jobs(_Face):
    """`memory.jobs`, without await."""

    def __init__(self, behind: AsyncJobs) -> None:
        self._behind = behind

    list = _blocking(AsyncJobs.list)
    get = _blocking(AsyncJobs.get)
    status = _blocking(AsyncJobs.status)


class Keys(_Face):
    """`memory.keys`, without await."""

    def __init__(self, behind: AsyncKeys) -> None:
        self._behind = behind

    create = _blocking(AsyncKeys.create)
    list = _blocking(AsyncKeys.list)
    revoke = _blocking(AsyncKeys.revoke)
    check = _blocking(AsyncKeys.check)
    any = _blocking(AsyncKeys.any)


class Webhooks(_Face):
    """`memory.webhooks`, without await."""

    def __init__(self, behind: AsyncWebhooks) -> None:
        self._behind = behind

    add = _blocking(AsyncWebhooks.add)
    list = _blocking(AsyncWebhooks.list)
    get = _blocking(AsyncWebhooks.get)
    remove = _blocking(AsyncWebhooks.remove)
    enable = _blocking(AsyncWebhooks.enable)


class Dead(_Face):
    """`memory.dead`, without await."""

    def __init__(self, behind: DeadLetters) -> None:
        self._behind = behind

    listed = _blocking(DeadLetters.listed)
    groups = _blocking(DeadLetters.groups)
    shown = _blocking(DeadLetters.shown)
    discard = _blocking(DeadLetters.discard)


class Plans(_Face):
    """`memory.replays`, without await."""

    def __init__(self, behind: Replays) -> None:
        self._behind = behind

    plan = _blocking(Replays.plan)
    estimate = _blocking(Replays.estimate)
    shadow = _blocking(Replays.shadow)
    shadows = _blocking(Replays.shadows)
    looked = _blocking(Replays.looked)
    start = _blocking(Replays.start)
    pause = _blocking(Replays.pause)
    abort = _blocking(Replays.abort)
    found = _blocking(Replays.found)
    listed = _blocking(Replays.listed)
    items = _blocking(Replays.items)
    running = _blocking(Replays.running)
    step = _blocking(Replays.step)


class Retention(_Face):
    """`memory.retention`, without await."""

    def __init__(self, behind: AsyncRetention) -> None:
        self._behind = behind

    get = _blocking(AsyncRetention.get)
    set = _blocking(AsyncRetention.set)
    clear = _blocking(AsyncRetention.clear)
    run = _blocking(AsyncRetention.run)


class Audit(_Face):
    """`memory.audit`, without await."""

    def __init__(self, behind: AsyncAudit) -> None:
        self._behind = behind

    record = _blocking(AsyncAudit.record)
    listed = _blocking(AsyncAudit.listed)
    verify = _blocking(AsyncAudit.verify)


class Encryption(_Face):
    """`memory.encryption`, without await."""

    def __init__(self, behind: AsyncEncryption) -> None:
        self._behind = behind

    key_id = _blocking(AsyncEncryption.key_id)
    encrypt = _blocking(AsyncEncryption.encrypt)
    rotate = _blocking(AsyncEncryption.rotate)
    retire = _blocking(AsyncEncryption.retire)
    rewrap = _blocking(AsyncEncryption.rewrap)


class Memory(_Face):
    """`aftermind.Memory`, without await. The same arguments; opened by `with`, closed by leaving it or by `close()`."""

    @wraps(AsyncMemory.__init__)  # type: ignore[misc]  # a constructor is decorated for its signature alone
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: those of the async one, which checks them
        self._behind = AsyncMemory(*args, **kwargs)
        self.settings, self.namespace = self._behind.settings, self._behind.namespace
        self.facts, self.blocks = Facts(self._behind.facts), Blocks(self._behind.blocks)
        self.jobs, self.keys = Jobs(self._behind.jobs), Keys(self._behind.keys)
        self.webhooks = Webhooks(self._behind.webhooks)

    @property
    def dead(self) -> Dead:
        """Jobs that failed for good."""
        return Dead(self._behind.dead)

    @property
    def replays(self) -> Plans:
        """Plans that bring dead letters back."""
        return Plans(self._behind.replays)

    @property
    def retention(self) -> Retention:
        """How long a namespace keeps its episodes."""
        return Retention(self._behind.retention)

    @property
    def audit(self) -> Audit:
        """What operators looked at, changed and deleted."""
        return Audit(self._behind.audit)

    @property
    def encryption(self) -> Encryption:
        """Content sealed in the database."""
        return Encryption(self._behind.encryption)

    remember = _handing_over(AsyncMemory.remember)
    recall = _blocking(AsyncMemory.recall)
    recall_scored = _blocking(AsyncMemory.recall_scored)
    history = _blocking(AsyncMemory.history)
    context_window = _blocking(AsyncMemory.context_window)
    search = _blocking(AsyncMemory.search)
    sessions = _blocking(AsyncMemory.sessions)
    users = _blocking(AsyncMemory.users)
    summary = _blocking(AsyncMemory.summary)
    profile = _blocking(AsyncMemory.profile)
    learned = _blocking(AsyncMemory.learned)
    spending = _blocking(AsyncMemory.spending)
    events = _iterating(AsyncMemory.events)
    past_events = _blocking(AsyncMemory.past_events)
    event_cursor = _blocking(AsyncMemory.event_cursor)
    progress = _blocking(AsyncMemory.progress)
    health = _blocking(AsyncMemory.health)
    forget = _blocking(AsyncMemory.forget)
    undo = _blocking(AsyncMemory.undo)
    remains = _blocking(AsyncMemory.remains)
    export = _blocking(AsyncMemory.export)
    close = _blocking(AsyncMemory.close)

    def __enter__(self) -> Self:
        portal.call(self._behind.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Agent(_Face):
    """`aftermind.Agent`, without await. Its `memory` is a `Memory` of this module."""

    @wraps(AsyncAgent.__init__)  # type: ignore[misc]  # as above
    def __init__(self, *args: Any, memory: Memory | None = None, **kwargs: Any) -> None:  # Any: as in `Memory`
        behind = None if memory is None else memory._behind
        self._behind = AsyncAgent(*args, memory=behind, **kwargs)
        self.memory = memory

    run = _blocking(AsyncAgent.arun)
    run_stream = _iterating(AsyncAgent.arun_stream)
