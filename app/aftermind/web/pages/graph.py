"""Memory explorer: the graph of a user's facts around an entity; adding and correcting facts, and merging names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind.facts.graph import FactGraph
from aftermind.facts.predicates import folded
from aftermind.types import Fact, FactId
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import WRITES, Owner

DRAWN = 60  # facts: more are not readable
RING, HEIGHT = 150.0, 60.0  # distance of entities one hop apart, and space above and below them

router = APIRouter(route_class=rendering.PageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An entity in the drawing."""

    name: str
    hop: int
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A fact in the drawing."""

    fact: Fact
    start: Node
    end: Node


@router.get("/memory/graph", response_class=HTMLResponse)
async def graph(
    request: Request, whose: Owner, entity: str = "user", hops: Annotated[int, Query(ge=1, le=5)] = 2, as_of: str = ""
) -> HTMLResponse:
    """The facts that connect an entity with others, as a drawing and as a table."""
    wanted = entity.strip() or "user"
    found = await whose.memory.facts.graph(
        wanted, **whose.scope, hops=hops, as_of=rendering.parse_time("as_of", as_of), limit=DRAWN
    )
    nodes = _place(found)
    size = max([abs(each) for node in nodes for each in (node.x, node.y)], default=0.0) + HEIGHT
    named = {folded(node.name): node for node in nodes}
    edges = [
        Edge(fact=fact, start=named[folded(fact.subject)], end=named[folded(fact.object)])
        for fact in found.facts
        if folded(fact.subject) in named and folded(fact.object) in named
    ]
    return rendering.page(
        request,
        "graph.html",
        here="memory",
        tab="graph",
        whose=whose,
        entity=wanted,
        hops=hops,
        as_of=as_of,
        facts=found.facts,
        is_cut=len(found.facts) == DRAWN,
        nodes=nodes,
        edges=edges,
        size=size,
    )


@router.post("/memory/facts/add", dependencies=WRITES, response_model=None)
async def add(
    whose: Owner,
    subject: Annotated[str, Form()],
    predicate: Annotated[str, Form()],
    object: Annotated[str, Form()],
    valid_from: Annotated[str, Form()] = "",
) -> RedirectResponse:
    """Add a fact. A new object of a single-valued predicate ends the validity of the old one."""
    await whose.memory.facts.add(
        subject, predicate, object, **whose.scope, valid_from=rendering.parse_time("valid_from", valid_from)
    )
    return _back(whose, subject)


@router.post("/memory/facts/correct", dependencies=WRITES, response_model=None)
async def correct(whose: Owner, fact: UUID, object: Annotated[str, Form(min_length=1)]) -> RedirectResponse:
    """Replace the object of a fact, as if the old one had never been true. Both stay in the history."""
    found = await whose.memory.facts.why(FactId(fact), **whose.scope)
    if found is None or not await whose.memory.facts.correct(found.fact, object, **whose.scope):
        raise HTTPException(409, "The fact was superseded since. Reload the page.")
    return _back(whose, found.fact.subject)


@router.post("/memory/entities/merge", dependencies=WRITES, response_model=None)
async def merge(whose: Owner, entity: Annotated[str, Form()], alias: Annotated[str, Form()]) -> RedirectResponse:
    """State that an alias is a name of an entity: its facts become facts of the entity."""
    await whose.memory.facts.merge_entities(entity, alias, **whose.scope)
    return _back(whose, entity)


def _back(whose: Owner, entity: str) -> RedirectResponse:
    return RedirectResponse(rendering.link("/memory/graph", entity=entity, **whose.query), status_code=303)


def _place(found: FactGraph) -> Sequence[Node]:
    """Entities on rings around the first, each near the entity that it is connected with."""
    parents = {folded(name): 0.0 for name, hop in found.hops.items() if hop == 0}
    nodes = [Node(name=name, hop=0, x=0.0, y=0.0) for name, hop in found.hops.items() if hop == 0]
    for ring in range(1, max(found.hops.values(), default=0) + 1):
        names = [name for name, hop in found.hops.items() if hop == ring]
        ordered = sorted(names, key=lambda name: _angle(name, found.facts, parents))
        radius = max(RING * ring, 40.0 * len(names) / math.tau)  # 40: the least distance of two labels
        angles = {folded(name): math.tau * place / len(ordered) for place, name in enumerate(ordered)}
        nodes += [
            Node(
                name=name,
                hop=ring,
                x=radius * math.cos(angles[folded(name)]),
                y=radius * math.sin(angles[folded(name)]),
            )
            for name in ordered
        ]
        parents = angles
    return nodes


def _angle(name: str, facts: Sequence[Fact], parents: dict[str, float]) -> float:
    """The direction of an entity's neighbour on the ring within."""
    sides = [(folded(fact.subject), folded(fact.object)) for fact in facts]
    near = [other for one, other in (*sides, *((b, a) for a, b in sides)) if one == folded(name) and other in parents]
    return parents[near[0]] if near else 0.0
