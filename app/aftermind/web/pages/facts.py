"""Memory explorer: facts on a timeline with their validity, and why each of them is believed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from uuid import UUID

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse

from aftermind.types import Fact, FactId
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import WRITES, Owner

MAX_FACTS = 1_000

router = APIRouter(route_class=rendering.PageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A fact on the time axis; `start` and `width` are percentages of it."""

    fact: Fact
    start: float
    width: float
    is_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The time that the facts of a page cover."""

    first: datetime
    last: datetime

    @property
    def ends(self) -> tuple[str, str]:
        """Both ends for people: days, or minutes where it is not longer than two of them."""
        form = "%Y-%m-%d" if self.last - self.first > timedelta(days=2) else "%Y-%m-%d %H:%M"
        return self.first.astimezone(UTC).strftime(form), self.last.astimezone(UTC).strftime(form)

    def place(self, moment: datetime) -> float:
        """Position of a moment on the axis, 0 to 100."""
        whole = (self.last - self.first).total_seconds() or 1.0
        return min(100.0, max(0.0, (moment - self.first).total_seconds() / whole * 100))


@router.get("/memory/facts", response_class=HTMLResponse)
async def facts(request: Request, whose: Owner, q: str = "", *, everything: bool = False) -> HTMLResponse:
    """What is believed of a user, by subject and predicate; with `everything` also what is not any more."""
    rows = await whose.memory.facts.history(**whose.scope, limit=MAX_FACTS)
    told = q.strip().lower()
    wanted = [
        row for row in rows if (everything or row.superseded_at is None) and (not told or told in row.text.lower())
    ]
    axis = _axis(wanted)
    groups = [(about, _bars(found, axis)) for about, found in _grouped(wanted)]
    return rendering.page(
        request,
        "facts.html",
        here="memory",
        tab="facts",
        whose=whose,
        q=q.strip(),
        everything=everything,
        groups=groups,
        axis=axis,
        count=len(wanted),
        hidden=len(rows) - len(wanted),
        is_cut=len(rows) == MAX_FACTS,
    )


@router.get("/memory/why", response_class=HTMLResponse)
async def why(request: Request, whose: Owner, fact: UUID) -> HTMLResponse:
    """The sources of a fact, and what was believed about the same before and after."""
    found = await whose.memory.facts.why(FactId(fact), **whose.scope)
    if found is None:
        raise HTTPException(404, f"The user has no fact {fact}.")
    about = {"subject": found.fact.subject, "predicate": found.fact.predicate}
    rows = await whose.memory.facts.history(**about, **whose.scope, limit=MAX_FACTS)
    chain = sorted(rows, key=lambda row: row.recorded_at)
    template = "_why.html" if rendering.is_piece(request) else "why.html"
    return rendering.page(request, template, here="memory", tab="facts", whose=whose, found=found, chain=chain)


@router.post("/memory/retract", dependencies=WRITES, response_class=HTMLResponse)
async def retract(request: Request, whose: Owner, fact: UUID) -> HTMLResponse:
    """Retract a fact, as if it had never been true."""
    was = await whose.memory.facts.retract(FactId(fact), **whose.scope)
    text = (
        "Retracted. A fact that it had ended is valid again."
        if was
        else "The fact is already superseded; nothing was changed."
    )
    return rendering.page(request, "_notice.html", text=text, tone="good" if was else "warn")


def _grouped(facts: Sequence[Fact]) -> list[tuple[tuple[str, str], list[Fact]]]:
    def about(fact: Fact) -> tuple[str, str]:
        return fact.subject, fact.predicate

    ordered = sorted(facts, key=lambda fact: (*about(fact), _since(fact)))
    return [(key, list(found)) for key, found in groupby(ordered, about)]


def _axis(facts: Sequence[Fact]) -> Axis:
    now = datetime.now(UTC)
    ends = [fact.valid_to for fact in facts if fact.valid_to]
    return Axis(first=min([_since(fact) for fact in facts], default=now), last=max([now, *ends]))


def _bars(facts: Sequence[Fact], axis: Axis) -> list[Bar]:
    now = datetime.now(UTC)
    bars = []
    for fact in facts:
        start = axis.place(_since(fact))
        end = axis.place(fact.valid_to) if fact.valid_to else 100.0
        start = min(start, 99.0)
        is_now = fact.superseded_at is None and fact.is_valid_at(now)
        bars.append(Bar(fact=fact, start=start, width=max(end - start, 1.0), is_now=is_now))
    return bars


def _since(fact: Fact) -> datetime:
    return fact.valid_from or fact.recorded_at
