"""One chat message as a caller gives it, and the episode it becomes."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID, uuid5

from aftermind.types.feedback import Feedback
from aftermind.types.scope import GROUP_PREFIX, EpisodeId, JobId, Scope
from aftermind.types.uuid7 import uuid7s

Json = Any  # JSON as decoded: checked once where it enters (types.normalise), so a recursive alias would only add casts


_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")  # https://platform.openai.com/docs/api-reference/chat/create
MAX_CHAT_NAME_CHARACTERS = 64
RESERVED = "aftermind."  # metadata of messages: names that begin so are refused from callers
RECORD = f"{RESERVED}record"


class FrameworkRecord(str):
    """A message of an agent framework as JSON, in the metadata under `RECORD`, as only integrations set it.

    What arrives as JSON never has this type, so callers of the HTTP API and models that call tools cannot write one.
    """

    __slots__ = ()


class Role(StrEnum):
    """The role of a speaker."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message, before it is stored.

    `occurred_at` is the time of the message (zone-aware); None means now. `metadata` is a JSON object; references to
    images and tool calls of the content are kept in it under `attachments`, `tool_calls` and `tool_call_id`.
    `expires_at` (zone-aware) is when the message expires by the clock of the store: it is neither read nor recalled
    from then on, and deleted later. No fact, summary or profile is made from such a message. None: it does not expire.
    """

    role: Role
    content: str
    name: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    occurred_at: datetime | None = None
    expires_at: datetime | None = None

    @classmethod
    def user(
        cls,
        content: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> Self:
        """A message of the user."""
        return cls(
            role=Role.USER,
            content=content,
            name=name,
            metadata=metadata or {},
            occurred_at=occurred_at,
            expires_at=expires_at,
        )

    @classmethod
    def assistant(
        cls,
        content: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> Self:
        """An answer of the agent."""
        return cls(
            role=Role.ASSISTANT,
            content=content,
            name=name,
            metadata=metadata or {},
            occurred_at=occurred_at,
            expires_at=expires_at,
        )

    @classmethod
    def system(
        cls,
        content: str,
        *,
        metadata: Mapping[str, Json] | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> Self:
        """A system message; it is stored and recalled, never mined for facts."""
        return cls(
            role=Role.SYSTEM,
            content=content,
            metadata=metadata or {},
            occurred_at=occurred_at,
            expires_at=expires_at,
        )

    @classmethod
    def tool(
        cls,
        content: str,
        *,
        name: str | None = None,
        trusted: bool = False,
        metadata: Mapping[str, Json] | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> Self:
        """What a tool of this name returned. `trusted=True` lets it become facts about the user (subject `user`)."""
        extra = {**(metadata or {}), **({"trusted": True} if trusted else {})}
        return cls(
            role=Role.TOOL,
            content=content,
            name=name,
            metadata=extra,
            occurred_at=occurred_at,
            expires_at=expires_at,
        )

    def to_chat(self: "Message | Episode") -> dict[str, Json]:
        """The message for chat models: role and text, a user's name, `tool_calls` and `tool_call_id` of its metadata.

        Characters that OpenAI refuses in a name are replaced by `_`. Without its images and files, of which
        `metadata["attachments"]` has a description.
        """
        more = {name: self.metadata[name] for name in ("tool_calls", "tool_call_id") if name in self.metadata}
        if self.name and self.role is Role.USER:
            more["name"] = _NOT_IN_NAMES.sub("_", self.name)[:MAX_CHAT_NAME_CHARACTERS]
        return {"role": self.role.value, "content": self.content, **more}


ALL_KINDS = frozenset({"history", "facts", "summary", "profile"})  # what a turn may be kept for: `save=`
MEMBER = "member"  # the field of metadata with the author of a message of a group
UNDONE = "undone"  # the mark of an episode from which nothing is to be drawn, nor shown by recall


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A message with its id: stored or pending (`pending`).

    `position` orders a session: microseconds since 1970 as assigned by the agent, strictly increasing within a session.
    `mark` is the reason for suspicion ("instruction-like", "undone"), None if there is none. `keep` is the `save=` of
    its turn: model calls for other kinds do not see it. `expires_at`: see `Message`.
    """

    id: EpisodeId
    scope: Scope
    role: Role
    content: str
    name: str | None
    metadata: Mapping[str, Json]
    occurred_at: datetime
    remembered_at: datetime
    position: int
    pending: bool = False
    mark: str | None = None
    keep: frozenset[str] = ALL_KINDS
    expires_at: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        """Whether it has expired by the clock of the store."""
        return self.expires_at is not None and self.expires_at <= now

    to_chat = Message.to_chat

    def __repr__(self) -> str:
        state = ", pending" if self.pending else ""
        return f"<Episode {self.role} {shorten(self.content)!r}, {self.occurred_at:%Y-%m-%d %H:%M}{state}>"


def shorten(text: str, *, characters: int = 60) -> str:
    """The beginning of a text, for a line of output."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The episodes that one `remember()` handed over, under the id of their store job.

    `base` is the position of the first; the others follow by one. `idempotency_key` is kept to be seen, its work is
    done by the job id that was derived from it, and `content_hash` shows whether the key was used for other content.
    `trace` is the span that handed it over. `generation` is that of the last erasure before the turn was accepted
    (None: spooled while neither Redis nor Postgres answered), `counted_from` see `types.session_order` (None: accepted
    while Redis did not answer). A turn with `feedback` is no conversation: its only message shows the feedback, and is
    not kept. `recalled`, of a turn that is not accepted yet, is the number of the last erasure before the recall that
    its answer was made from.
    """

    job_id: JobId
    scope: Scope
    remembered_at: datetime
    base: int
    messages: tuple[Message, ...]
    episode_ids: tuple[EpisodeId, ...]
    keep: frozenset[str] = ALL_KINDS
    idempotency_key: str | None = None
    trace: str | None = None
    content_hash: str | None = None
    generation: int | None = None
    recalled: int | None = None
    counted_from: int | None = None
    shift: int = 0
    feedback: Feedback | None = None
    spooled_seconds: float = 0.0  # that it had waited in a spool when it was sent, by the clock of that host

    def accepted_under(self, number: int | None) -> int | None:
        """The generation of a turn that is accepted when the last erasure has this number: not above it."""
        return number if number is None or self.recalled is None else min(number, self.recalled)

    @property
    def author(self) -> Scope | None:
        """The owner that wrote the turn, if it belongs to a group; None for any other turn."""
        if not (self.scope.user_id or "").startswith(GROUP_PREFIX):
            return None
        member = self.messages[0].metadata.get(MEMBER)
        return Scope(namespace=self.scope.namespace, user_id=member) if isinstance(member, str) and member else None

    def episodes(self, *, pending: bool = False) -> tuple[Episode, ...]:
        """The turn's messages as episodes, in order."""
        return tuple(
            Episode(
                id=episode_id,
                scope=self.scope,
                role=message.role,
                content=message.content,
                name=message.name,
                metadata=message.metadata,
                occurred_at=message.occurred_at or self.remembered_at,
                remembered_at=self.remembered_at,
                position=self.base + index,
                pending=pending,
                # Nothing is derived from a message that expires: nothing is left to be deleted with it.
                keep=self.keep if message.expires_at is None else self.keep & {"history"},
                expires_at=message.expires_at,
            )
            for index, (episode_id, message) in enumerate(zip(self.episode_ids, self.messages, strict=True))
        )

    def without(self, covers: Callable[[Episode], bool]) -> "Turn | None":
        """The turn as it is without the episodes of which `covers` is true; None where none is left."""
        left = [place for place, episode in enumerate(self.episodes()) if not covers(episode)]
        if len(left) == len(self.messages):
            return self
        rest = replace(
            self,
            messages=tuple(self.messages[place] for place in left),
            episode_ids=tuple(self.episode_ids[place] for place in left),
        )
        return rest if left else None


def content_metadata(message: Message) -> Mapping[str, Json]:
    """Of its metadata what belongs to its content: attachments, calls of tools, the record of a framework."""
    names = ("attachments", "tool_calls", "tool_call_id", RECORD)
    return {name: message.metadata[name] for name in names if name in message.metadata}


def content_hash(scope: Scope, idempotency_key: str, messages: Sequence[Message]) -> str:
    """Digest of the turn that a key was used for: the session, and each message with its name and metadata, without
    times.

    The key is hashed first. It is stored nowhere next to the hash, so that content cannot be guessed from the hash.
    """
    said = [[each.role.value, each.name, each.content, each.metadata] for each in messages]
    whole = json.dumps([idempotency_key, scope.session_id, said], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def without_key(turn: Turn) -> Turn:
    """The turn without its idempotency key, which belongs to other content. Its ids are derived from the first ids, so
    that a repetition gives the same turn.
    """
    job_id = uuid5(turn.job_id, turn.content_hash or "")
    ids = tuple(EpisodeId(uuid5(job_id, str(index))) for index in range(len(turn.messages)))
    return replace(turn, job_id=JobId(job_id), episode_ids=ids, idempotency_key=None, content_hash=None)


_KEYED = UUID("6f1d3a52-5c07-5d3b-9a0e-aa4b8a1d7c11")  # any fixed namespace: it only keeps our derived ids apart


def new_ids(count: int) -> tuple[JobId, tuple[EpisodeId, ...]]:
    """Fresh ids for a turn of `count` messages, in time order."""
    job, *episodes = uuid7s(count + 1)
    return JobId(job), tuple([EpisodeId(each) for each in episodes])


def keyed_ids(scope: Scope, idempotency_key: str, count: int) -> tuple[JobId, tuple[EpisodeId, ...]]:
    """The ids that a repeated call with the same key derives again, so that the second call is the first.

    Unique per (namespace, user, key): a UUIDv5 over the three with their lengths, so that no two triples meet. Those of
    the episodes are in their order, which is that of facts from messages of one time.
    """
    parts = (scope.namespace, scope.user_column, idempotency_key)
    job = uuid5(_KEYED, "".join(f"{len(part)}:{part}" for part in parts))
    first = uuid5(job, "episodes").int & ~0xFFFF
    return JobId(job), tuple(EpisodeId(UUID(int=first | index)) for index in range(count))
