"""`Query` and `RecallOptions`: the validated input of a recall."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Literal, TypedDict, Unpack
from uuid import UUID

from aftermind import errors
from aftermind.nearest_name import nearest_name
from aftermind.stores.protocol import EpisodeFilter
from aftermind.types import Json, Role, Scope
from aftermind.types.timestamps import why_unusable
from aftermind.types.uuid7 import time_of
from aftermind.types.validation import Limits, json_object, to_role
from aftermind.types.whole_number import check_whole_number

MAX_QUERY_CHARACTERS = 1_048_576  # an agent passes its user's input; longer input is not typed
READ_CHARACTERS = 8_000  # of a long query: its beginning and end, which usually have the request
MAX_LIMIT = 1_000
KINDS = frozenset({"history", "facts", "summary", "profile", "blocks"})


SCOPE = ("user_id", "session_id", "agent_id", "namespace", "group")  # named at each call, besides the options
# What facts.query() and other memory systems call these options.
SYNONYMS = {
    "user": "user_id",
    "session": "session_id",
    "top_k": "limit",
    "k": "limit",
    "max_tokens": "token_budget",
    "threshold": "min_score",
}


class RecallMode(StrEnum):
    """What decides the order: words and meaning, one of them, or (`recency`) only the order of storing."""

    HYBRID = "hybrid"
    VECTOR = "vector"
    LEXICAL = "lexical"
    RECENCY = "recency"


class RecallOptions(TypedDict, total=False):
    """The options of a recall, the same in Python and over HTTP. None is the default.

    `token_budget` bounds the block (default `AFTERMIND_RECALL_TOKEN_BUDGET`), `limit` the episodes and, by itself,
    the facts (default `AFTERMIND_RECALL_LIMIT`; other messages of an episode's burst come in addition). `mode` is
    hybrid, vector, lexical or recency. Filters of episodes: `in_session`, `by_agent`, `roles`, `metadata`
    (containment), `since` (inclusive) and `until` (exclusive). `known_at` asks for the state of memory at that time:
    messages and beliefs until then. `min_score`, of episodes and facts, and `diversity` are from 0 to 1. `load` names
    the kinds of memory in the block: history, facts, summary, profile, blocks. `rerank` applies the reranker that the
    memory was given; without one it is refused.
    """

    token_budget: int | None
    mode: "RecallMode | Literal['hybrid', 'vector', 'lexical', 'recency']"
    limit: int | None
    in_session: str | None
    by_agent: str | None
    roles: Iterable[str] | None
    metadata: Mapping[str, Json] | None
    since: datetime | None
    until: datetime | None
    known_at: datetime | None
    min_score: float
    diversity: float
    load: Iterable[str] | None
    rerank: bool


_FOR_A_LIVING = re.compile(r"\bfor (?:a|my) living\b(?! (?:wage|trust|will))", re.IGNORECASE)  # no form of "live"
_DEFAULTS: RecallOptions = {
    "token_budget": 1_000,
    "mode": "hybrid",
    "limit": 20,
    "min_score": 0.0,
    "diversity": 0.0,
    "rerank": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A validated recall. `text` is the whole query; `wanted` selects the episodes that may match.

    `scope.session_id` is the current session: its turns are first among equals. `load` are the kinds of memory in the
    block: history (episodes), facts, summary, profile, blocks. `diversity` 0 to 1 is the weight of dissimilarity
    relative to the score. `rerank` requests the pipeline's reranker.
    """

    text: str
    scope: Scope
    mode: RecallMode = RecallMode.HYBRID
    token_budget: int = 1_000
    limit: int = 20
    wanted: EpisodeFilter = EpisodeFilter()  # noqa: RUF009
    known_at: datetime | None = None
    min_score: float = 0.0
    diversity: float = 0.0
    load: frozenset[str] = KINDS
    rerank: bool = False

    @property
    def searched(self) -> str:
        """The text to search: for a very long one, its beginning and end."""
        text = self.text
        if len(text) > READ_CHARACTERS:
            half = READ_CHARACTERS // 2
            text = f"{text[:half]}\n{text[-half:]}"
        return _FOR_A_LIVING.sub("as a job, at work", text)

    @classmethod
    def checked(
        cls, text: str, scope: Scope, *, defaults: RecallOptions | None = None, **options: Unpack[RecallOptions]
    ) -> "Query":
        """Raise `InvalidQuery` for an option out of range. An empty text requests the newest episodes.

        `defaults` replace options that are left out or None.
        """
        unknown = options.keys() - RecallOptions.__annotations__.keys()
        if unknown:
            name = min(unknown)
            near = nearest_name(name, (*SCOPE, *RecallOptions.__annotations__), SYNONYMS)
            hint = f"Did you mean {near}?" if near else f"It has {', '.join((*SCOPE, *RecallOptions.__annotations__))}."
            if name == "as_of":
                hint = "For what was true then, name the time in the text; `known_at` is what memory held then."
            raise TypeError(f"recall has no option {name!r}. {hint}")
        asked: RecallOptions = {**_DEFAULTS, **(defaults or {})}
        asked.update({name: value for name, value in options.items() if value is not None})  # type: ignore[typeddict-item]
        cleaned = _text(text)
        chosen = _mode(asked["mode"]) if cleaned.strip() else RecallMode.RECENCY
        check_whole_number(asked["token_budget"], field="token_budget", most=10_000_000)
        check_whole_number(asked["limit"], field="limit", most=MAX_LIMIT)
        _share("min_score", asked["min_score"])
        _share("diversity", asked["diversity"])
        since, until, known_at = asked.get("since"), asked.get("until"), asked.get("known_at")
        for name, moment in (("since", since), ("until", until), ("known_at", known_at)):
            _moment(name, moment)
        if since and until and until <= since:
            raise errors.InvalidQuery("until", until, "the time range is empty: it ends before it begins.")
        wanted = EpisodeFilter(
            session_id=asked.get("in_session"),
            agent_id=asked.get("by_agent"),
            roles=_roles(asked.get("roles")),
            metadata=_metadata(asked.get("metadata")),
            since=since,
            until=until,
        )
        return cls(
            text=cleaned,
            scope=scope,
            mode=chosen,
            token_budget=asked["token_budget"] or 0,
            limit=asked["limit"] or 0,
            wanted=wanted,
            known_at=known_at,
            min_score=asked["min_score"],
            diversity=asked["diversity"],
            load=_load(asked.get("load")),
            rerank=asked["rerank"],
        )


def time_of_recall(recall_id: object) -> datetime:
    """When a recall was made, by its id. Raises `InvalidQuery` for what is no id of a recall."""
    try:
        return time_of(UUID(str(recall_id)))
    except (ValueError, OverflowError) as exc:
        why = "it is no id of a recall. Pass the `id` of the block."
        raise errors.InvalidQuery("recall_id", recall_id, why) from exc


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise errors.InvalidQuery("query", text, f"a question is text, not {type(text).__name__}.")
    if len(text) > MAX_QUERY_CHARACTERS:
        why = f"a question has at most {MAX_QUERY_CHARACTERS:,} characters, this one has {len(text):,}."
        raise errors.InvalidQuery("query", text[:40], why)
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _mode(mode: object) -> RecallMode:
    try:
        return RecallMode(mode)  # type: ignore[arg-type]
    except ValueError as exc:
        raise errors.InvalidQuery("mode", mode, f"a mode is one of {', '.join(RecallMode)}.") from exc


def _share(field: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or not 0 <= value <= 1:  # type: ignore[arg-type, operator]
        raise errors.InvalidQuery(field, value, "it must be between 0 and 1.")


def _moment(field: str, moment: object) -> None:
    if moment is None:
        return
    why = why_unusable(moment)
    if why is not None:
        raise errors.InvalidQuery(field, moment, why)


def _metadata(metadata: Mapping[str, Json] | None) -> dict[str, Json]:
    """A filter has the bounds of a message's metadata: what is beyond them matches nothing."""
    if metadata is None:
        return {}
    try:
        return json_object(metadata, Limits())
    except errors.InvalidMessage as exc:
        raise errors.InvalidQuery("metadata", metadata, exc.why) from exc


def _roles(roles: Iterable[str] | None) -> frozenset[Role] | None:
    if roles is None:
        return None
    given = [roles] if isinstance(roles, str) else list(roles)
    try:
        wanted = frozenset(map(to_role, given))
    except errors.InvalidMessage:
        wanted = frozenset()
    if not wanted:
        raise errors.InvalidQuery("roles", given, f"roles are some of {', '.join(Role)}.")
    return wanted


def _load(load: Iterable[str] | None) -> frozenset[str]:
    if load is None:
        return KINDS
    given = frozenset([load] if isinstance(load, str) else load)
    if not given <= KINDS:
        raise errors.InvalidQuery("load", sorted(given), f"kinds are some of {', '.join(sorted(KINDS))}.")
    return given
