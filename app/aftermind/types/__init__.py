"""Value types shared by all packages: scopes, messages, facts, blocks, jobs, results."""

from aftermind.types.blocks_summaries_profiles import Block, Profile, Summary, Trait
from aftermind.types.embedder_identity import EmbedderIdentity, StoredEmbedders
from aftermind.types.extraction import ExtractionResult, ExtractionState
from aftermind.types.fact import Cardinality, Fact
from aftermind.types.items import Item, ItemWrite
from aftermind.types.job import Attempt, Job, JobKind, JobState, Lease, NewJob
from aftermind.types.message import Episode, Json, Message, Role, Turn
from aftermind.types.recall_results import (
    BlockLine,
    ExcludedMatch,
    ExclusionReason,
    Match,
    Passage,
    RecallBlock,
    RecallExplanation,
    ServedBy,
)
from aftermind.types.scope import EpisodeId, FactId, JobId, LeaseToken, RecallId, Scope
from aftermind.types.watermark import Watermark

__all__ = [
    "Attempt",
    "Block",
    "BlockLine",
    "Cardinality",
    "EmbedderIdentity",
    "Episode",
    "EpisodeId",
    "ExcludedMatch",
    "ExclusionReason",
    "ExtractionResult",
    "ExtractionState",
    "Fact",
    "FactId",
    "Item",
    "ItemWrite",
    "Job",
    "JobId",
    "JobKind",
    "JobState",
    "Json",
    "Lease",
    "LeaseToken",
    "Match",
    "Message",
    "NewJob",
    "Passage",
    "Profile",
    "RecallBlock",
    "RecallExplanation",
    "RecallId",
    "Role",
    "Scope",
    "ServedBy",
    "StoredEmbedders",
    "Summary",
    "Trait",
    "Turn",
    "Watermark",
]
