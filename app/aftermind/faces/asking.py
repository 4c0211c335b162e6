"""What can be asked of a recall, as keywords and as a checked query."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypedDict

from aftermind import recall
from aftermind.faces.parts import Parts
from aftermind.recall import Query
from aftermind.types import Json

Mode = recall.Mode | Literal["hybrid", "vector", "lexical", "recency"]


class Asked(TypedDict, total=False):
    """The keywords of `Memory.recall`, but for the token budget."""

    user_id: str | None
    session_id: str | None
    agent_id: str | None
    namespace: str | None
    mode: Mode
    limit: int | None
    in_session: str | None
    by_agent: str | None
    roles: Iterable[str] | None
    metadata: Mapping[str, Json] | None
    since: datetime | None
    until: datetime | None
    as_of: datetime | None
    min_score: float
    diversity: float
    load: Iterable[str] | None
    rerank: bool


def query(parts: Parts, text: str, asked: Asked, *, token_budget: int, load: frozenset[str] | None) -> Query:
    """The query; `load` is what is loaded where nothing is named. Raises `InvalidScope` and `InvalidQuery`."""
    scope = parts.scope(
        namespace=asked.get("namespace"),
        user_id=asked.get("user_id"),
        session_id=asked.get("session_id"),
        agent_id=asked.get("agent_id"),
    )
    limit, named = asked.get("limit"), asked.get("load")
    return Query.checked(
        text,
        scope,
        mode=asked.get("mode", "hybrid"),
        token_budget=token_budget,
        limit=parts.settings.recall_limit if limit is None else limit,
        in_session=asked.get("in_session"),
        by_agent=asked.get("by_agent"),
        roles=asked.get("roles"),
        metadata=asked.get("metadata"),
        since=asked.get("since"),
        until=asked.get("until"),
        as_of=asked.get("as_of"),
        min_score=asked.get("min_score", 0.0),
        diversity=asked.get("diversity", 0.0),
        load=load if named is None else named,
        rerank=asked.get("rerank", False),
    )
