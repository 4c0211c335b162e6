"""A re-embedding: the embedders of the stored vectors, its progress, its cost, and what it changes in recall."""

from dataclasses import dataclass

from aftermind.types.embedder_identity import EmbedderIdentity, StoredEmbedders
from aftermind.types.scope import EpisodeId, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Reembedding:
    """The embedders whose vectors the store has. `is_cut_over`: the active one is the target of the re-embedding."""

    stored: StoredEmbedders
    is_cut_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReembeddingCounts:
    """Episodes, those with vectors of either embedder, and the characters of their texts as stored."""

    episodes: int
    active: int
    standby: int
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReembeddingSteps:
    """Unfinished jobs of a re-embedding; `why` is the reason that one of them gives for waiting or failing."""

    waiting: int = 0
    running: int = 0
    dead: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReembeddingPlan:
    """What a re-embedding would do. `cost_usd` is None if the embedder's price is unknown, 0 if nothing is paid."""

    active: EmbedderIdentity
    target: EmbedderIdentity
    episodes: int
    tokens: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReembeddingStatus:
    """Which embedders' vectors the store holds, how many episodes have them, and the jobs that are unfinished."""

    reembedding: Reembedding
    counts: ReembeddingCounts
    steps: ReembeddingSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallDifference:
    """What a question finds by either embedder: ids that only one of them has among its best, best first."""

    question: str
    owner: Scope
    overlap: float
    gone: tuple[EpisodeId, ...]
    new: tuple[EpisodeId, ...]
