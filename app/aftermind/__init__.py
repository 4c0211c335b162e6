"""Agent memory whose writes happen after the answer."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time `__getattr__` loads each name at its first use, so that importing stays light
    from aftermind.agent import Agent, AgentResult, Tool, block_tools
    from aftermind.api.encryption import Sealed
    from aftermind.api.facts import Why
    from aftermind.api.forget import Export, Forgot
    from aftermind.api.health import Health, Progress
    from aftermind.api.undo import Undone
    from aftermind.errors import AftermindError
    from aftermind.events.types import (
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
    from aftermind.ledger.protocol import Spending
    from aftermind.ledger.replays import NewPlan
    from aftermind.memory import Memory
    from aftermind.recall import RecallOptions
    from aftermind.receipt import Receipt, ReceiptStatus
    from aftermind.run_context import RunContext, get_run_context
    from aftermind.settings import Settings
    from aftermind.stores.protocol import SessionInfo, UserInfo
    from aftermind.types import (
        Block,
        Cardinality,
        Episode,
        EpisodeId,
        Fact,
        FactId,
        Job,
        JobId,
        JobKind,
        JobState,
        Learned,
        Match,
        Message,
        Profile,
        RecallBlock,
        Role,
        Scope,
        Summary,
    )
    from aftermind.types.api_key import ApiKey, Right
    from aftermind.types.audit import Action, AuditEntry, AuditReport
    from aftermind.types.erasure_report import ErasureReport, SearchedPlace
    from aftermind.types.replay import (
        DeadGroup,
        DeadLetter,
        Estimate,
        ItemState,
        JobFilter,
        PlanId,
        ReplayItem,
        ReplayPlan,
        Shadow,
    )
    from aftermind.types.retention import Retained, RetentionPolicy
    from aftermind.types.webhook import NewWebhook, Webhook, WebhookId

__version__ = "0.1.0"

_HOMES = {
    "aftermind.agent": ("Agent", "AgentResult", "Tool", "block_tools"),
    "aftermind.api.encryption": ("Sealed",),
    "aftermind.api.facts": ("Why",),
    "aftermind.facts.graph": ("FactGraph",),
    "aftermind.api.forget": ("Export", "Forgot"),
    "aftermind.api.health": ("Health", "Progress"),
    "aftermind.api.undo": ("Undone",),
    "aftermind.errors": ("AftermindError",),
    "aftermind.events.types": (
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
    "aftermind.ledger.protocol": ("Spending",),
    "aftermind.ledger.replays": ("NewPlan",),
    "aftermind.memory": ("Memory",),
    "aftermind.recall": ("RecallOptions",),
    "aftermind.receipt": ("Receipt", "ReceiptStatus"),
    "aftermind.run_context": ("RunContext", "get_run_context"),
    "aftermind.settings": ("Settings",),
    "aftermind.stores.protocol": ("SessionInfo", "UserInfo"),
    "aftermind.types": (
        "Block",
        "Cardinality",
        "Episode",
        "EpisodeId",
        "Fact",
        "FactId",
        "Job",
        "JobId",
        "JobKind",
        "JobState",
        "Learned",
        "Match",
        "Message",
        "Profile",
        "RecallBlock",
        "Role",
        "Scope",
        "Summary",
    ),
    "aftermind.types.api_key": ("ApiKey", "Right"),
    "aftermind.types.audit": ("Action", "AuditEntry", "AuditReport"),
    "aftermind.types.erasure_report": ("ErasureReport", "SearchedPlace"),
    "aftermind.types.replay": (
        "DeadGroup",
        "DeadLetter",
        "Estimate",
        "ItemState",
        "JobFilter",
        "PlanId",
        "ReplayItem",
        "ReplayPlan",
        "Shadow",
    ),
    "aftermind.types.retention": ("Retained", "RetentionPolicy"),
    "aftermind.types.webhook": ("NewWebhook", "Webhook", "WebhookId"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Action",
    "AftermindError",
    "Agent",
    "AgentResult",
    "ApiKey",
    "AuditEntry",
    "AuditReport",
    "Block",
    "Cardinality",
    "DeadGroup",
    "DeadLetter",
    "Episode",
    "EpisodeId",
    "ErasureReport",
    "Estimate",
    "Export",
    "Fact",
    "FactGraph",
    "FactId",
    "Forgot",
    "Health",
    "ItemState",
    "Job",
    "JobFilter",
    "JobId",
    "JobKind",
    "JobState",
    "Learned",
    "Match",
    "Memory",
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
    "NewPlan",
    "NewWebhook",
    "PlanId",
    "Profile",
    "Progress",
    "RecallBlock",
    "RecallOptions",
    "Receipt",
    "ReceiptStatus",
    "ReplayItem",
    "ReplayPlan",
    "Retained",
    "RetentionPolicy",
    "Right",
    "Role",
    "RunContext",
    "Scope",
    "Sealed",
    "SearchedPlace",
    "SessionInfo",
    "Settings",
    "Shadow",
    "Spending",
    "Summary",
    "Tool",
    "Undone",
    "UserInfo",
    "Webhook",
    "WebhookId",
    "Why",
    "block_tools",
    "get_run_context",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    value.__module__ = __name__  # where users find it, in reprs and tracebacks
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
