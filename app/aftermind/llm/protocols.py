"""The seam to models: embed, extract, summarise, profile, chat; one method each."""

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Protocol, Self, runtime_checkable
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aftermind import errors
from aftermind.types import Cardinality, EmbedderIdentity, EpisodeId, Fact, Json, Role
from aftermind.types.assertion import Assertion, Operation

Vectors = NDArray[np.float32]  # shape (texts, dimension)
REQUIRED_ATTRIBUTES = {
    "embedder": ("name", "dimension", "inline", "max_batch", "max_batch_tokens", "usd_per_million_tokens", "embed"),
    "extractor": ("name", "version", "extract"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Cost of an answer: calls, tokens, milliseconds, and US dollars if the price is published."""

    model: str
    calls: int = 1  # two where the first answer could not be used
    tokens_in: int = 0
    tokens_out: int = 0
    latency_ms: float = 0.0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """An episode as a model sees it. `trusted`: it may become facts (the user's own words, trusted tools)."""

    id: EpisodeId
    role: Role
    name: str | None
    content: str
    occurred_at: datetime
    trusted: bool

    @property
    def speaker(self) -> str | None:
        """The name of a speaker; None for a tool: its facts are about the user."""
        return None if self.role is Role.TOOL else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """Turns to mine, oldest first, with what is believed already in view."""

    turns: Sequence[TurnText]
    known: Sequence[Fact] = ()
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What was drawn from the turns. No claims is a decision: `reason_empty` then gives the reason.

    `reasons` are reasons of single turns from which nothing was drawn, where they differ from that. `lacks_reference`:
    a turn corrects or ends something that is not believed, and that an earlier session may state.
    """

    claims: tuple[Assertion, ...]
    reason_empty: str | None
    usage: Usage
    reasons: Mapping[EpisodeId, str] = field(default_factory=dict)
    lacks_reference: bool = False

    def to_json(self) -> dict[str, Any]:  # Any: JSON as it leaves
        """As kept with the job, so that a retry neither asks again nor gets another answer."""
        return {
            "claims": [_claim_to_json(claim) for claim in self.claims],
            "reason_empty": self.reason_empty,
            "usage": asdict(self.usage),
            "reasons": {str(id_): reason for id_, reason in self.reasons.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:  # Any: JSON as it arrives
        """The reverse of `to_json`."""
        return cls(
            claims=tuple(_claim_from_json(claim) for claim in data["claims"]),
            reason_empty=data["reason_empty"],
            usage=Usage(**data["usage"]),
            reasons={EpisodeId(UUID(id_)): reason for id_, reason in data.get("reasons", {}).items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """A summary and what it cost."""

    text: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Traits to set, by name, each with the episodes that support it; traits that are not named stay."""

    values: Mapping[str, Json]
    evidence: Mapping[str, tuple[EpisodeId, ...]]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that a model wants called: `arguments` is a JSON object as text, `id` names the call."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A model's answer: text, tools to call, or both.

    `finish_reason` is why it ended: `stop`, `tool_calls`, or `length` if a limit of tokens cut it off. A `usage` with
    an empty model is of the model that was asked.
    """

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(model=""))
    finish_reason: str = "stop"


class Embedder(Protocol):
    """Texts to vectors. `inline`: pure CPU, no I/O, under a millisecond per text; stored with the turn itself.

    `usd_per_million_tokens` is None if the price is unknown, 0 if nothing is paid. Name, dimension and the optional
    attribute `revision` (text, default empty) are its identity: vectors of different identities are never compared. Set
    another revision for another model of the same name.
    """

    name: str
    usd_per_million_tokens: float | None
    inline: bool
    max_batch: int
    max_batch_tokens: int

    @property
    def dimension(self) -> int:
        """The length of its vectors."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row a text, in order, of unit length. Raises the model errors of `aftermind.errors`."""


def check_required_attributes(field: str, given: object) -> None:
    """Raise `InvalidSettings` if an object that is given as `embedder` or `extractor` lacks what its protocol has."""
    absent = object()  # not None, which a price may be; and no property is run, which may load a model
    missing = [each for each in REQUIRED_ATTRIBUTES[field] if inspect.getattr_static(given, each, absent) is absent]
    if missing:
        protocol = f"aftermind.llm.protocols.{field.capitalize()}"
        why = f"it lacks {', '.join(missing)}: see {protocol}, and docs/guides/agents.md for an example."
        raise errors.InvalidSettings(field, type(given).__name__, why)


def embedder_identity(embedder: Embedder) -> EmbedderIdentity:
    """The embedder's identity. A model of this machine is loaded for it: call it in a thread."""
    dimension = embedder.dimension
    return EmbedderIdentity(name=embedder.name, dimension=dimension, revision=getattr(embedder, "revision", ""))


@runtime_checkable
class Prepares(Protocol):
    """An embedder whose first call has something to load: a memory that is opened by `async with` has it loaded before.

    Embedders need not have this.
    """

    async def prepare(self) -> None:
        """Load it without blocking the loop. The first call raises its errors; `close()` waits for its end."""


@runtime_checkable
class EmbedsQueries(Protocol):
    """An embedder with another vector for a text that is a question than for a stored one.

    Embedders need not have this. Both vectors are of one identity, since they are compared.
    """

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """As `embed`, of questions."""


async def embed(embedder: Embedder, texts: Sequence[str], *, queries: bool = False) -> Vectors:
    """The vectors of an embedder, checked: one row a text, of its dimension, of finite numbers.

    Raises `BadModelAnswer` for others, and what the embedder raises.
    """
    call = embedder.embed_queries if queries and isinstance(embedder, EmbedsQueries) else embedder.embed
    made = await call(texts)
    try:
        rows: Vectors = np.asarray(made, dtype=np.float32)
    except (TypeError, ValueError) as exc:
        raise errors.BadModelAnswer(
            embedder.name, f"its vectors are no array of numbers ({type(exc).__name__})"
        ) from exc
    wanted = (len(texts), embedder.dimension)
    if rows.shape != wanted:
        why = f"its vectors have the shape {rows.shape}, and {len(texts)} texts and its dimension need {wanted}"
        raise errors.BadModelAnswer(embedder.name, why)
    if not np.isfinite(rows).all():
        raise errors.BadModelAnswer(embedder.name, "its vectors have numbers that are not finite")
    return rows


class Extractor(Protocol):
    """Turns to assertions. `name` and `version` are stored with each fact.

    An extractor that reads each turn separately, so that no turn can change the result of another, may set the
    attribute `reads_turns_apart = True`: to undo a message then retracts only its own facts.
    """

    name: str
    version: str

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Claims of the trusted turns. Raises the model errors of `aftermind.errors`."""


class Summariser(Protocol):
    """A session to a short text."""

    name: str

    async def summarise(self, previous: str | None, turns: Sequence[TurnText]) -> Condensed:
        """The summary that takes the place of `previous` and covers `turns` too."""


class Profiler(Protocol):
    """Turns to traits of their user."""

    name: str

    async def profile(
        self, current: Mapping[str, Json], turns: Sequence[TurnText], schema: Mapping[str, Json] | None
    ) -> Traits:
        """What the turns change about `current`. `schema` is a JSON schema of traits, None lets the model propose."""


class ChatModel(Protocol):
    """A model to talk to, for `Agent`."""

    name: str

    def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> AsyncIterator[str | ChatReply]:
        """Pieces of text as they come, and the whole reply at the end.

        `messages` and `tools` are as in OpenAI's chat completions.
        """


def _claim_to_json(claim: Assertion) -> dict[str, Any]:
    data = asdict(claim)
    data["sources"] = [str(source) for source in claim.sources]
    return data | {
        key: moment.isoformat()
        for key in ("said_at", "valid_from", "valid_to", "latest_at")
        if (moment := getattr(claim, key))
    }


def _claim_from_json(data: Mapping[str, Any]) -> Assertion:
    return Assertion(
        subject=data["subject"],
        predicate=data["predicate"],
        object=data["object"],
        said_at=datetime.fromisoformat(data["said_at"]),
        operation=Operation(data["operation"]),
        valid_from=_moment(data["valid_from"]),
        valid_to=_moment(data["valid_to"]),
        latest_at=_moment(data["latest_at"]),
        confidence=data["confidence"],
        cardinality=Cardinality(data["cardinality"]) if data["cardinality"] else None,
        sources=tuple(EpisodeId(UUID(source)) for source in data["sources"]),
        quote=data["quote"],
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
