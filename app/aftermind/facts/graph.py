"""The graph of a user's facts: entities are the nodes, facts the edges."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftermind.facts.predicates import folded
from aftermind.types import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGraph:
    """What is connected with an entity. `hops` gives the distance of each entity, the nearest first, itself with 0.

    `facts` connect them, the nearest first. Both are empty apart from the entity if no fact names it.
    """

    entity: str
    hops: Mapping[str, int]
    facts: tuple[Fact, ...]

    def __repr__(self) -> str:
        return f"<FactGraph {self.entity!r}: {len(self.hops)} entities, {len(self.facts)} facts>"


def neighbourhood(entity: str, facts: Sequence[Fact], *, hops: int, limit: int) -> FactGraph:
    """Breadth-first search from an entity, in either direction of the facts, up to `limit` facts.

    Entities are the same if their words are, whatever their case, articles and punctuation.
    """
    touching: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        for side in dict.fromkeys((folded(fact.subject), folded(fact.object))):
            touching[side].append(fact)
    start = folded(entity)
    distances, names = {start: 0}, {start: entity}
    found: dict[object, Fact] = {}
    border = [start]
    for distance in range(1, hops + 1):
        reached: list[str] = []
        for node in border:
            for fact in touching[node]:
                if fact.id not in found and len(found) >= limit:
                    break
                found[fact.id] = fact
                for name in (fact.subject, fact.object):
                    if folded(name) not in distances:
                        distances[folded(name)], names[folded(name)] = distance, name
                        reached.append(folded(name))
        border = reached
    return FactGraph(
        entity=entity,
        hops={names[node]: distance for node, distance in distances.items()},
        facts=tuple(found.values()),
    )
