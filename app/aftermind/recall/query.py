"""What is asked of memory, checked before anything happens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import isfinite

from aftermind import errors
from aftermind.stores.base import EpisodeFilter
from aftermind.types import Json, Role, Scope
from aftermind.types.moments import why_unusable
from aftermind.types.normalise import Limits, json_object

MAX_QUERY_CHARACTERS = 1_048_576  # an agent passes on what its user typed; nobody types more
READ_CHARACTERS = 8_000  # of a long question: its beginning and its end, where people say what they want
MAX_LIMIT = 1_000
KINDS = frozenset({"history", "facts", "summary", "profile", "blocks"})


class Mode(StrEnum):
    """What decides the order: words and meaning, one of them, or time alone."""

    HYBRID = "hybrid"
    VECTOR = "vector"
    LEXICAL = "lexical"
    RECENCY = "recency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A recall, checked. `text` is what was asked, whole; `wanted` which episodes may answer.

    `scope.session_id` is the session that asks: its turns come first among equals. `load` are the kinds of memory that
    may be in the block: history (episodes), facts, summary, profile, blocks. `diversity` 0 to 1 is how much unlikeness
    counts beside the score. `rerank` asks for the reranker that the pipeline was given.
    """

    text: str
    scope: Scope
    mode: Mode = Mode.HYBRID
    token_budget: int = 1_000
    limit: int = 20
    wanted: EpisodeFilter = EpisodeFilter()  # noqa: RUF009
    as_of: datetime | None = None
    min_score: float = 0.0
    diversity: float = 0.0
    load: frozenset[str] = KINDS
    rerank: bool = False

    @property
    def searched(self) -> str:
        """What is looked for: the text, of a very long one its beginning and its end."""
        if len(self.text) <= READ_CHARACTERS:
            return self.text
        half = READ_CHARACTERS // 2
        return f"{self.text[:half]}\n{self.text[-half:]}"

    @classmethod
    def checked(
        cls,
        text: str,
        scope: Scope,
        *,
        mode: str = "hybrid",
        token_budget: int = 1_000,
        limit: int = 20,
        in_session: str | None = None,
        by_agent: str | None = None,
        roles: Iterable[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        min_score: float = 0.0,
        diversity: float = 0.0,
        load: Iterable[str] | None = None,
        rerank: bool = False,
    ) -> "Query":
        """Raises `InvalidQuery` for anything that cannot be asked; an empty text is a question for what is newest."""
        cleaned = _text(text)
        chosen = _mode(mode) if cleaned.strip() else Mode.RECENCY
        _whole("token_budget", token_budget, most=10_000_000)
        _whole("limit", limit, most=MAX_LIMIT)
        _share("min_score", min_score)
        _share("diversity", diversity)
        for name, moment in (("since", since), ("until", until), ("as_of", as_of)):
            _moment(name, moment)
        if since and until and until <= since:
            raise errors.InvalidQuery("until", until, "the time range is empty: it ends before it begins.")
        wanted = EpisodeFilter(
            session_id=in_session,
            agent_id=by_agent,
            roles=_roles(roles),
            metadata=_metadata(metadata),
            since=since,
            until=until,
        )
        return cls(
            text=cleaned,
            scope=scope,
            mode=chosen,
            token_budget=token_budget,
            limit=limit,
            wanted=wanted,
            as_of=as_of,
            min_score=min_score,
            diversity=diversity,
            load=_load(load),
            rerank=rerank,
        )


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise errors.InvalidQuery("query", text, f"a question is text, not {type(text).__name__}.")
    if len(text) > MAX_QUERY_CHARACTERS:
        why = f"a question has at most {MAX_QUERY_CHARACTERS:,} characters, this one has {len(text):,}."
        raise errors.InvalidQuery("query", text[:40], why)
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _mode(mode: object) -> Mode:
    try:
        return Mode(mode)  # type: ignore[arg-type]
    except ValueError as exc:
        raise errors.InvalidQuery("mode", mode, f"a mode is one of {', '.join(Mode)}.") from exc


def _whole(field: str, value: object, *, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise errors.InvalidQuery(field, value, f"it is a whole number from 1 to {most:,}.")


def _share(field: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or not 0 <= value <= 1:  # type: ignore[arg-type, operator]
        raise errors.InvalidQuery(field, value, "it lies between 0 and 1.")


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
    unknown = [role for role in given if role not in set(Role)]
    if unknown or not given:
        raise errors.InvalidQuery("roles", given, f"roles are some of {', '.join(Role)}.")
    return frozenset(Role(role) for role in given)


def _load(load: Iterable[str] | None) -> frozenset[str]:
    if load is None:
        return KINDS
    given = frozenset([load] if isinstance(load, str) else load)
    if not given <= KINDS:
        raise errors.InvalidQuery("load", sorted(given), f"kinds are some of {', '.join(sorted(KINDS))}.")
    return given
