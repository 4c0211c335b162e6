"""`aftermind.sync` has the signatures of the async faces, so that one page of documentation serves both."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import aftermind
import aftermind.sync
from aftermind.agent import Agent
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
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.postgres.replay_plans import Replays

PAIRS: list[tuple[type, type]] = [
    (aftermind.Memory, aftermind.sync.Memory),
    (aftermind.Receipt, aftermind.sync.Receipt),
    (Facts, aftermind.sync.Facts),
    (Blocks, aftermind.sync.Blocks),
    (Checkpoints, aftermind.sync.Checkpoints),
    (Groups, aftermind.sync.Groups),
    (Items, aftermind.sync.Items),
    (Jobs, aftermind.sync.Jobs),
    (JobAdmin, aftermind.sync.JobAdmin),
    (Ranking, aftermind.sync.Ranking),
    (ApiKeys, aftermind.sync.ApiKeys),
    (Webhooks, aftermind.sync.Webhooks),
    (DeadLetters, aftermind.sync.DeadLetters),
    (Replays, aftermind.sync.Replays),
    (Retention, aftermind.sync.Retention),
    (Audit, aftermind.sync.Audit),
    (Encryption, aftermind.sync.Encryption),
    (Reembeddings, aftermind.sync.Reembeddings),
    (Tenants, aftermind.sync.Tenants),
]
NAMES = [
    (there, here, name)
    for there, here in PAIRS
    for name, value in vars(there).items()
    if inspect.isfunction(value) and not name.startswith("_")
]


@pytest.mark.parametrize(("there", "here", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_has_the_same_signature(there: type, here: type, name: str) -> None:
    assert _parameters(getattr(here, name)) == _parameters(getattr(there, name))


@pytest.mark.parametrize(("there", "here", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_needs_no_await(there: type, here: type, name: str) -> None:
    code = getattr(here, name)
    while hasattr(code, "__wrapped__") and not code.__code__.co_filename.endswith("sync.py"):
        code = code.__wrapped__

    assert not code.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)


@pytest.mark.parametrize(("there", "here"), PAIRS)
def test_nothing_is_on_one_face_only(there: type, here: type) -> None:
    missing = _public(there) - _public(here)
    more = _public(here) - _public(there)

    assert not missing
    assert not more


def test_the_memories_are_made_alike() -> None:
    assert _parameters(aftermind.sync.Memory.__init__) == _parameters(aftermind.Memory.__init__)


def test_the_agents_are_made_alike() -> None:
    assert _parameters(aftermind.sync.Agent.__init__) == _parameters(Agent.__init__)


def test_the_sync_agent_runs_as_the_async_one() -> None:
    assert _parameters(aftermind.sync.Agent.run) == _parameters(Agent.arun)
    assert _parameters(aftermind.sync.Agent.run_stream) == _parameters(Agent.arun_stream)


def _public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_") and callable(getattr(face, name))}


def _parameters(method: Callable[..., Any]) -> list[tuple[str, object, object]]:  # Any: any method
    return [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]
