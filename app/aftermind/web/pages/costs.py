"""Costs of models: of the namespace or of all, by day, kind of job and model, against the budget of a day."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from aftermind.api.multi_database_calls import away_databases
from aftermind.types import JobKind
from aftermind.types.api_key import Right
from aftermind.types.job_admin import ModelCost
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import OPERATES, Seen

RANGES = (7, 30, 90)  # days

router = APIRouter(route_class=rendering.PageRoute, dependencies=OPERATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Costs of what has a name in common; `share` is the percentage of the highest of its list."""

    name: str
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    share: float
    is_cost_unknown: bool


@router.get("/costs", response_class=HTMLResponse)
async def costs(
    request: Request, viewer: Seen, days: Annotated[int, Query(ge=1, le=366)] = 30, *, everywhere: bool = False
) -> HTMLResponse:
    """What models have cost. `everywhere`: all namespaces, for a key with the right for them."""
    is_everywhere = everywhere and viewer.may(Right.TENANTS)
    found = await viewer.memory.job_admin.costs(
        namespace=None if is_everywhere else viewer.namespace, over=timedelta(days=days - 1)
    )
    today = datetime.now(UTC).date()
    budget = None if is_everywhere else viewer.memory.settings.budget_for(viewer.namespace)
    of_today = [each for each in found if each.day == today]
    tokens_today = sum(each.tokens_in + each.tokens_out for each in of_today if each.kind is not JobKind.EMBED)
    usd_today = sum(each.cost_usd for each in of_today)
    return rendering.page(
        request,
        "costs.html",
        here="costs",
        days=days,
        ranges=RANGES,
        everywhere=is_everywhere,
        may_see_all=viewer.may(Right.TENANTS),
        away=away_databases(found),
        by_day=_by_day(found, today, days),
        tables=[(title, _sums(found, key)) for title, key in _groupings(is_everywhere)],
        total=sum(each.cost_usd for each in found),
        calls=sum(each.calls for each in found),
        tokens=sum(each.tokens_in + each.tokens_out for each in found),
        today=usd_today,
        is_today_unknown=any(each.is_cost_unknown for each in of_today),
        unpriced_models=sorted({each.model or "rules" for each in found if each.is_cost_unknown}),
        tokens_today=tokens_today,
        budget=budget,
        reached=None if budget is None else budget.reached_limit(tokens=tokens_today, usd=usd_today),
    )


def _groupings(is_everywhere: bool) -> list[tuple[str, Callable[[ModelCost], str]]]:
    found: list[tuple[str, Callable[[ModelCost], str]]] = [
        ("Model", lambda each: each.model or "rules"),
        ("Kind of job", lambda each: each.kind),
    ]
    return [("Namespace", lambda each: each.namespace), *found] if is_everywhere else found


def _by_day(found: Sequence[ModelCost], today: date, days: int) -> list[Sum]:
    """Each day of the range, those without costs too, the newest first."""
    named = {each.name: each for each in _sums(found, lambda each: each.day.isoformat())}
    empty = {"calls": 0, "tokens_in": 0, "tokens_out": 0}
    wanted = [(today - timedelta(days=back)).isoformat() for back in range(days)]
    return [named.get(day) or Sum(name=day, cost_usd=0.0, share=0.0, is_cost_unknown=False, **empty) for day in wanted]


def _sums(found: Sequence[ModelCost], key: Callable[[ModelCost], str]) -> list[Sum]:
    grouped: dict[str, list[ModelCost]] = defaultdict(list)
    for each in found:
        grouped[key(each)].append(each)
    totals = {name: sum(each.cost_usd for each in rows) for name, rows in grouped.items()}
    most = max(totals.values(), default=0.0) or 1.0
    return [
        Sum(
            name=name,
            calls=sum(each.calls for each in grouped[name]),
            tokens_in=sum(each.tokens_in for each in grouped[name]),
            tokens_out=sum(each.tokens_out for each in grouped[name]),
            cost_usd=cost,
            is_cost_unknown=any(each.is_cost_unknown for each in grouped[name]),
            share=100 * cost / most,
        )
        for name, cost in sorted(totals.items(), key=lambda pair: -pair[1])
    ]
