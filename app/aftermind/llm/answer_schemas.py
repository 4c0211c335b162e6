"""Pydantic schemas of models' answers, and their conversion to assertions."""

from calendar import isleap, monthrange
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aftermind.llm.protocols import TurnText
from aftermind.types import Cardinality, EpisodeId
from aftermind.types.assertion import Assertion, Operation

# What strict structured outputs take, for every model; fine-tuned models refuse bounds such as maxLength or minimum.
STRICT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "enum", "const", "items", "anyOf", "$ref", "$defs"}
    | {"description"}
)


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:  # Any: JSON
    """The model's JSON schema without the keywords that strict structured outputs refuse.

    The bounds that are left out here are checked when the answer is parsed.
    """
    strict: dict[str, Any] = _strict(model.model_json_schema())
    return strict


def _strict(schema: Any) -> Any:  # Any: JSON of any shape
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword in STRICT_KEYWORDS & schema.keys():
        value = schema[keyword]
        if keyword in ("properties", "$defs"):
            found[keyword] = {name: _strict(each) for name, each in value.items()}
        else:
            found[keyword] = value if keyword in ("enum", "const", "required") else _strict(value)
    return {keyword: found[keyword] for keyword in schema if keyword in found}


class Answer(BaseModel):
    """Closed, so that a strict JSON schema comes out of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AnsweredClaim(Answer):
    """One claim, its sources by their number in the prompt."""

    subject: str = Field(description='"user" for the person who speaks without a name, else the name', max_length=200)
    predicate: str = Field(description="snake_case, for example lives_in, works_at, likes", max_length=100)
    object: str = Field(max_length=1_000)
    operation: Literal["assert", "retract"]
    cardinality: Literal["single", "multi"]
    valid_from: str | None = Field(description="ISO date from which it is true, null if not said")
    valid_to: str | None = Field(description="ISO date at which it ended, null if it has not")
    confidence: float = Field(ge=0, le=1)
    sources: list[int] = Field(description="numbers of the turns it comes from")
    quote: str = Field(description="the words of a source turn that say so, copied exactly")


class AnsweredExtraction(Answer):
    """All claims of the turns; where there are none, why."""

    claims: list[AnsweredClaim] = Field(max_length=100)
    reason_empty: str | None


class AnsweredSummary(Answer):
    """A rolling summary."""

    summary: str = Field(min_length=1, max_length=8_000)


class AnsweredTrait(Answer):
    """One trait, its value as JSON text, and the turns that speak for it."""

    name: str = Field(max_length=100)
    value: str = Field(description="the value as JSON text")
    evidence: list[int]


class AnsweredProfile(Answer):
    """The traits that change."""

    traits: list[AnsweredTrait] = Field(max_length=50)


def build_assertions(answer: AnsweredExtraction, turns: Sequence[TurnText]) -> tuple[Assertion, ...]:
    """The assertions of a model's answer, without malformed ones; `grounding.ground` drops ungrounded ones."""
    found = (_claim(claim, turns) for claim in answer.claims)
    return tuple(claim for claim in found if claim is not None)


def _claim(answered: AnsweredClaim, turns: Sequence[TurnText]) -> Assertion | None:
    named = [turns[number - 1] for number in answered.sources if 0 < number <= len(turns)]
    if not named or not answered.predicate.strip():
        return None
    valid_from, valid_to = _moment(answered.valid_from), _moment(answered.valid_to)
    if valid_from and valid_to and valid_to < valid_from:
        return None
    said_at = max(turn.occurred_at for turn in named)
    return Assertion(
        subject=answered.subject,
        predicate=answered.predicate,
        object=answered.object,
        said_at=said_at,
        operation=Operation(answered.operation),
        valid_from=valid_from,
        valid_to=valid_to,
        latest_at=_latest(answered.valid_to or answered.valid_from, said_at),
        confidence=answered.confidence,
        cardinality=Cardinality(answered.cardinality),
        sources=tuple(turn.id for turn in named),
        quote=answered.quote,
    )


def evidence_ids(numbers: Sequence[int], turns: Sequence[TurnText]) -> tuple[EpisodeId, ...]:
    """Ids of the turns of these numbers, those that exist."""
    return tuple(turns[number - 1].id for number in numbers if 0 < number <= len(turns))


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text) if len(text) > 10 else _day(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _latest(text: str | None, said_at: datetime) -> datetime | None:
    """The latest moment of a year, a month or a day that is not after the statement; None of any other time."""
    start = _moment(text) if text and len(text) <= 10 else None
    if text is None or start is None or start > said_at:
        return None
    parts = text.count("-")
    days = 1 if parts == 2 else monthrange(start.year, start.month)[1] if parts else 365 + isleap(start.year)
    return min(start + timedelta(days=days, microseconds=-1), said_at)


def _day(text: str) -> datetime:
    parts = [int(part) for part in text.split("-")]
    day = date(parts[0], *([*parts[1:], 1, 1][:2]))  # people write "2019" and "2019-03"
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
