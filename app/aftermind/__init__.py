"""Agent memory whose writes happen after the answer."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time `__getattr__` loads each name at its first use, so that importing stays light
    from aftermind.agent import (
        Agent,
        AgentEvent,
        AgentResult,
        TextDelta,
        Tool,
        ToolCalled,
        ToolReturned,
        block_tools,
    )
    from aftermind.agent.run_context import RunContext, get_run_context
    from aftermind.api.checkpoints import Checkpoint
    from aftermind.api.context_window import ContextWindow
    from aftermind.api.encryption import EncryptedNamespace, EncryptionResult
    from aftermind.api.facts import Provenance
    from aftermind.api.forget_and_export import Export, Forgot
    from aftermind.api.groups import Member
    from aftermind.api.health import Component, Health, Progress, Replica, Waiting, Work
    from aftermind.api.reindex import Reindexed
    from aftermind.api.undo import UndoResult
    from aftermind.errors import AftermindError
    from aftermind.events.types import (
        MemoryEmbedded,
        MemoryEvent,
        MemoryFactsExtracted,
        MemoryGap,
        MemoryRecallCompleted,
        MemoryRecallStarted,
        MemoryUpdateCompleted,
        MemoryUpdateFailed,
        MemoryUpdateQueued,
        MemoryUpdateStarted,
    )
    from aftermind.facts.graph import FactGraph
    from aftermind.ledger.protocol import DailyUsage, ModelUsage
    from aftermind.ledger.replay_protocol import NewPlan
    from aftermind.llm.protocols import Usage
    from aftermind.memory import Memory
    from aftermind.recall import Candidates, RecallMode, RecallOptions
    from aftermind.receipt import Receipt, ReceiptStatus, Step, StepState
    from aftermind.settings import ModelBudget, Settings
    from aftermind.stores.protocol import SessionInfo, UserInfo
    from aftermind.types import (
        Block,
        BlockLine,
        Cardinality,
        EmbedderIdentity,
        Episode,
        EpisodeId,
        ExcludedMatch,
        ExclusionReason,
        ExtractionResult,
        Fact,
        FactId,
        Item,
        ItemWrite,
        Job,
        JobId,
        JobKind,
        JobState,
        Match,
        Message,
        Passage,
        Profile,
        RecallBlock,
        RecallExplanation,
        RecallId,
        Role,
        Scope,
        Summary,
    )
    from aftermind.types.api_key import ApiKey, Right
    from aftermind.types.assertion import Assertion, Operation, RecordedAssertion
    from aftermind.types.audit import Action, AuditEntry, AuditFault, AuditReport
    from aftermind.types.blocks_summaries_profiles import Trait
    from aftermind.types.embedder_identity import StoredEmbedders
    from aftermind.types.erasure_report import ErasureProof, ErasureReport, SearchedPlace
    from aftermind.types.extraction import ExtractionState
    from aftermind.types.job import Attempt
    from aftermind.types.job_admin import (
        JobAction,
        JobActionId,
        JobActionResult,
        JobCount,
        JobPause,
        MetricSample,
        ModelCost,
        PendingTurn,
        ProcessInfo,
        StageLatency,
        TenantSummary,
        Timeline,
        TimelineStep,
    )
    from aftermind.types.recall_results import ServedBy
    from aftermind.types.reembedding import (
        RecallDifference,
        Reembedding,
        ReembeddingCounts,
        ReembeddingPlan,
        ReembeddingStatus,
        ReembeddingSteps,
    )
    from aftermind.types.replay import (
        DeadGroup,
        DeadLetter,
        DryRunResult,
        Estimate,
        ItemState,
        JobFilter,
        PlanId,
        PlanState,
        ReplayItem,
        ReplayMode,
        ReplayPlan,
    )
    from aftermind.types.retention import RetentionPolicy, RetentionResult
    from aftermind.types.stream_token import StreamToken
    from aftermind.types.tenant_move import PurgedTenant, TenantMove
    from aftermind.types.webhook import NewWebhook, Webhook, WebhookId

__version__ = "0.1.0"

_HOMES = {
    "aftermind.agent": (
        "Agent",
        "AgentEvent",
        "AgentResult",
        "TextDelta",
        "Tool",
        "ToolCalled",
        "ToolReturned",
        "block_tools",
    ),
    "aftermind.api.checkpoints": ("Checkpoint",),
    "aftermind.api.context_window": ("ContextWindow",),
    "aftermind.api.encryption": ("EncryptedNamespace", "EncryptionResult"),
    "aftermind.api.facts": ("Provenance",),
    "aftermind.facts.graph": ("FactGraph",),
    "aftermind.api.forget_and_export": ("Export", "Forgot"),
    "aftermind.api.groups": ("Member",),
    "aftermind.api.health": ("Work", "Waiting", "Replica", "Component", "Health", "Progress"),
    "aftermind.api.reindex": ("Reindexed",),
    "aftermind.api.undo": ("UndoResult",),
    "aftermind.errors": ("AftermindError",),
    "aftermind.events.types": (
        "MemoryEmbedded",
        "MemoryEvent",
        "MemoryFactsExtracted",
        "MemoryGap",
        "MemoryRecallCompleted",
        "MemoryRecallStarted",
        "MemoryUpdateCompleted",
        "MemoryUpdateFailed",
        "MemoryUpdateQueued",
        "MemoryUpdateStarted",
    ),
    "aftermind.ledger.protocol": (
        "ModelUsage",
        "DailyUsage",
    ),
    "aftermind.ledger.replay_protocol": ("NewPlan",),
    "aftermind.memory": ("Memory",),
    "aftermind.recall": ("RecallMode", "Candidates", "RecallOptions"),
    "aftermind.receipt": ("Step", "StepState", "Receipt", "ReceiptStatus"),
    "aftermind.agent.run_context": ("RunContext", "get_run_context"),
    "aftermind.settings": ("ModelBudget", "Settings"),
    "aftermind.stores.protocol": ("SessionInfo", "UserInfo"),
    "aftermind.types": (
        "Block",
        "BlockLine",
        "Cardinality",
        "EmbedderIdentity",
        "Episode",
        "EpisodeId",
        "ExcludedMatch",
        "ExclusionReason",
        "Fact",
        "FactId",
        "Item",
        "ItemWrite",
        "Job",
        "JobId",
        "JobKind",
        "JobState",
        "ExtractionResult",
        "Match",
        "Message",
        "Passage",
        "Profile",
        "RecallBlock",
        "RecallExplanation",
        "RecallId",
        "Role",
        "Scope",
        "Summary",
    ),
    "aftermind.types.api_key": ("ApiKey", "Right"),
    "aftermind.types.audit": ("AuditFault", "Action", "AuditEntry", "AuditReport"),
    "aftermind.types.erasure_report": ("ErasureProof", "ErasureReport", "SearchedPlace"),
    "aftermind.types.job_admin": (
        "JobAction",
        "JobActionId",
        "JobActionResult",
        "JobCount",
        "JobPause",
        "MetricSample",
        "ModelCost",
        "PendingTurn",
        "ProcessInfo",
        "StageLatency",
        "TenantSummary",
        "Timeline",
        "TimelineStep",
    ),
    "aftermind.types.reembedding": (
        "ReembeddingSteps",
        "ReembeddingCounts",
        "Reembedding",
        "RecallDifference",
        "ReembeddingPlan",
        "ReembeddingStatus",
    ),
    "aftermind.types.replay": (
        "ReplayMode",
        "PlanState",
        "DeadGroup",
        "DeadLetter",
        "Estimate",
        "ItemState",
        "JobFilter",
        "PlanId",
        "ReplayItem",
        "ReplayPlan",
        "DryRunResult",
    ),
    "aftermind.types.stream_token": ("StreamToken",),
    "aftermind.types.retention": ("RetentionResult", "RetentionPolicy"),
    "aftermind.types.tenant_move": ("PurgedTenant", "TenantMove"),
    "aftermind.types.webhook": ("NewWebhook", "Webhook", "WebhookId"),
    "aftermind.types.job": ("Attempt",),
    "aftermind.types.extraction": ("ExtractionState",),
    "aftermind.types.assertion": (
        "Operation",
        "Assertion",
        "RecordedAssertion",
    ),
    "aftermind.types.recall_results": ("ServedBy",),
    "aftermind.types.blocks_summaries_profiles": ("Trait",),
    "aftermind.llm.protocols": ("Usage",),
    "aftermind.types.embedder_identity": (
        "StoredEmbedders",
        "StoredEmbedders",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Action",
    "AftermindError",
    "Agent",
    "AgentEvent",
    "AgentResult",
    "ApiKey",
    "Assertion",
    "Attempt",
    "AuditEntry",
    "AuditFault",
    "AuditReport",
    "Block",
    "BlockLine",
    "Candidates",
    "Cardinality",
    "Checkpoint",
    "Component",
    "ContextWindow",
    "DailyUsage",
    "DeadGroup",
    "DeadLetter",
    "DryRunResult",
    "EmbedderIdentity",
    "EncryptedNamespace",
    "EncryptionResult",
    "Episode",
    "EpisodeId",
    "ErasureProof",
    "ErasureReport",
    "Estimate",
    "ExcludedMatch",
    "ExclusionReason",
    "Export",
    "ExtractionResult",
    "ExtractionState",
    "Fact",
    "FactGraph",
    "FactId",
    "Forgot",
    "Health",
    "Item",
    "ItemState",
    "ItemWrite",
    "Job",
    "JobAction",
    "JobActionId",
    "JobActionResult",
    "JobCount",
    "JobFilter",
    "JobId",
    "JobKind",
    "JobPause",
    "JobState",
    "Match",
    "Member",
    "Memory",
    "MemoryEmbedded",
    "MemoryEvent",
    "MemoryFactsExtracted",
    "MemoryGap",
    "MemoryRecallCompleted",
    "MemoryRecallStarted",
    "MemoryUpdateCompleted",
    "MemoryUpdateFailed",
    "MemoryUpdateQueued",
    "MemoryUpdateStarted",
    "Message",
    "MetricSample",
    "ModelBudget",
    "ModelCost",
    "ModelUsage",
    "NewPlan",
    "NewWebhook",
    "Operation",
    "Passage",
    "PendingTurn",
    "PlanId",
    "PlanState",
    "ProcessInfo",
    "Profile",
    "Progress",
    "Provenance",
    "PurgedTenant",
    "RecallBlock",
    "RecallDifference",
    "RecallExplanation",
    "RecallId",
    "RecallMode",
    "RecallOptions",
    "Receipt",
    "ReceiptStatus",
    "RecordedAssertion",
    "Reembedding",
    "ReembeddingCounts",
    "ReembeddingPlan",
    "ReembeddingStatus",
    "ReembeddingSteps",
    "Reindexed",
    "ReplayItem",
    "ReplayMode",
    "ReplayPlan",
    "Replica",
    "RetentionPolicy",
    "RetentionResult",
    "Right",
    "Role",
    "RunContext",
    "Scope",
    "SearchedPlace",
    "ServedBy",
    "SessionInfo",
    "Settings",
    "StageLatency",
    "Step",
    "StepState",
    "StoredEmbedders",
    "StreamToken",
    "Summary",
    "TenantMove",
    "TenantSummary",
    "TextDelta",
    "Timeline",
    "TimelineStep",
    "Tool",
    "ToolCalled",
    "ToolReturned",
    "Trait",
    "UndoResult",
    "Usage",
    "UserInfo",
    "Waiting",
    "Webhook",
    "WebhookId",
    "Work",
    "block_tools",
    "get_run_context",
]


def _load(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    if callable(value):  # not AgentEvent, a union
        value.__module__ = __name__  # where users find it, in reprs and tracebacks
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # type checkers would believe that it has every name
    __getattr__ = _load
