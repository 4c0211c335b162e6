"""What users import is pinned: nothing becomes public by accident, and nothing goes away unseen."""

import ast
import inspect
import typing
from pathlib import Path

from pydantic import BaseModel

import aftermind
from aftermind.api.api_keys import ApiKeys
from aftermind.api.audit import Audit
from aftermind.api.blocks import Blocks
from aftermind.api.checkpoints import Checkpoints
from aftermind.api.encryption import Encryption
from aftermind.api.facts import Facts
from aftermind.api.groups import Groups
from aftermind.api.items import Items
from aftermind.api.job_admin import JobAdmin
from aftermind.api.jobs import Jobs
from aftermind.api.ranking import Ranking
from aftermind.api.reembed import Reembeddings
from aftermind.api.retention.policies import Retention
from aftermind.api.tenants import Tenants
from aftermind.api.webhooks import Webhooks
from aftermind.ledger.inmemory.dead_letters import InMemoryDeadLetters
from aftermind.ledger.inmemory.replays import InMemoryReplays
from aftermind.web.schemas import RecallIn

API_TYPES = (
    ApiKeys,
    Audit,
    Blocks,
    Checkpoints,
    InMemoryDeadLetters,
    Encryption,
    Facts,
    Groups,
    Items,
    JobAdmin,
    Jobs,
    Ranking,
    InMemoryReplays,
    Reembeddings,
    Retention,
    Tenants,
    Webhooks,
)

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert aftermind.__all__ == PUBLIC


def test_the_public_names_are_sorted() -> None:
    assert aftermind.__all__ == sorted(aftermind.__all__)


def test_public_classes_say_that_they_are_of_aftermind() -> None:
    homes = {
        name: getattr(aftermind, name).__module__ for name in aftermind.__all__ if callable(getattr(aftermind, name))
    }

    assert set(homes.values()) == {"aftermind"}, homes


def test_dir_shows_what_can_be_imported() -> None:
    assert set(aftermind.__all__) <= set(dir(aftermind))


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    tree = ast.parse(Path(aftermind.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}

    assert seen == {(home, name) for home, names in aftermind._HOMES.items() for name in names}
    assert {name for _, name in seen} == set(aftermind.__all__)


def test_what_public_methods_take_and_return_can_be_imported_from_aftermind() -> None:
    memory = aftermind.Memory("inmemory")
    apis = [type(each) for each in vars(memory).values() if isinstance(each, API_TYPES)]
    named: set[str] = set()
    for owner in (aftermind.Memory, aftermind.Receipt, *apis):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                for hint in typing.get_type_hints(method).values():
                    named |= _own_types(hint)

    assert len(apis) == len(API_TYPES)
    assert named <= set(aftermind.__all__)


def test_the_types_of_what_public_classes_have_can_be_imported_from_aftermind() -> None:
    named: dict[str, str] = {}
    for name in aftermind.__all__:
        owner = getattr(aftermind, name)
        if isinstance(owner, type) and not issubclass(owner, BaseModel | aftermind.Candidates):
            hints = [typing.get_type_hints(owner)]
            getters = inspect.getmembers(owner, lambda each: isinstance(each, property))
            methods = [each.fget for _, each in getters] + [m for _, m in inspect.getmembers(owner, inspect.isfunction)]
            hints += [typing.get_type_hints(each) for each in methods if not each.__name__.startswith("_")]
            named |= {own: name for each in hints for hint in each.values() for own in _own_types(hint)}

    assert {own: by for own, by in named.items() if own not in aftermind.__all__} == {}


def test_a_recall_has_the_same_options_in_python_and_over_http() -> None:
    over_http = set(RecallIn.model_fields) - {"query", "session_id", "agent_id"}

    assert over_http == set(aftermind.RecallOptions.__annotations__) - {"rerank"}  # a function of the caller's process


def _own_types(hint: object) -> set[str]:
    inner = {name for part in typing.get_args(hint) for name in _own_types(part)}
    is_own = isinstance(hint, type | typing.NewType) and hint.__module__.startswith("aftermind")
    return inner | ({hint.__name__} if is_own else set())
