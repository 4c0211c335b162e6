"""Whatever agents, workers, time and operators do in whatever order: the ledger is as the model says."""

import os
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.ledger.ledger_machine import LedgerMachine
from tests.support.servers import Database

EXAMPLES = int(os.environ.get("LEDGER_EXAMPLES", "40"))  # 20,000 in a night


@pytest.mark.timeout(0 if EXAMPLES > 100 else 600)
def test_the_ledger_is_as_the_model_says(database: Database) -> None:
    machine = cast(type[LedgerMachine], type("Machine", (LedgerMachine,), {"url": database.url}))

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
