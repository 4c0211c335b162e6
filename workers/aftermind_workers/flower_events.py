"""Jobs in Flower: those that failed, died, or were replayed, each under its job id.

Celery reports doorbells to Flower, and a doorbell represents any work. Therefore a worker reports such jobs as if each
were a task: named by its kind, with its ids as arguments and a reason as its error. Nothing more: Flower's pages and
its file on disk contain no content.
"""

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery

from aftermind.ledger.protocol import Failure
from aftermind.telemetry.logger import get_logger
from aftermind.types import Job, JobKind
from aftermind.wire.pending import ClaimedTurn
from aftermind_tasks.job_outcome_types import Dead, Done, Outcome, Retry

log = get_logger(__name__)

MAX_QUEUED_REPORTS = 1_000  # waiting reports; beyond it they are dropped, because the ledger has them all
QUIET_SECONDS = 5.0  # after the broker did not take one

FlowerEvent = tuple[str, Mapping[str, Any]]  # Any: fields of Celery's events


class FlowerReporter:
    """Sends reports from a separate thread: a broker that does not answer must not delay the work.

    `node` is the worker's name, under which Flower lists the reports.
    """

    def __init__(self, app: Celery, *, node: str) -> None:
        self._app, self._node = app, node
        self._waiting: queue.Queue[FlowerEvent] = queue.Queue(MAX_QUEUED_REPORTS)
        self._thread = threading.Thread(target=self._main, name="aftermind-showing", daemon=True)
        self._thread.start()

    def attempt_ended(self, job: Job, outcome: Outcome) -> None:
        """Report a job of the ledger, unless it succeeded at the first attempt."""
        ids = {"namespace": job.scope.namespace, "session_id": job.scope.session_id}
        ids |= {"replays": str(job.origin_job_id)} if job.origin_job_id else {}
        if isinstance(outcome, Dead):
            self._send_event(job.kind, str(job.id), ids, "task-failed", _error(outcome.failure))
        elif isinstance(outcome, Retry):
            self._send_event(job.kind, str(job.id), ids, "task-retried", _error(outcome.failure))
        elif isinstance(outcome, Done) and (job.origin_job_id or job.attempts > 1):
            self._send_event(job.kind, str(job.id), ids, "task-succeeded", {"result": f"done, try {job.attempts}"})

    def on_dead_letter(self, turn: ClaimedTurn, reason_code: str) -> None:
        """A pending turn that became a dead letter."""
        ids = {"namespace": turn.owner.namespace}
        self._send_event(
            JobKind.STORE, str(turn.job_id), ids, "task-failed", {"exception": reason_code, "traceback": ""}
        )

    def _send_event(
        self, kind: JobKind, job_id: str, ids: Mapping[str, str | None], end: str, how: Mapping[str, str]
    ) -> None:
        # Not the bare id: a turn's first bell has that one, and Flower takes no failure of what has succeeded.
        uuid = f"{kind}-{job_id}"
        shown = {"name": f"memory.{kind}", "args": f"('{job_id}',)", "kwargs": repr(ids)}
        try:
            self._waiting.put_nowait(("task-received", {"uuid": uuid, "retries": 0, **shown}))
            self._waiting.put_nowait((end, {"uuid": uuid, "runtime": 0.0, **how}))
        except queue.Full:
            pass

    def _main(self) -> None:
        while True:
            first = self._waiting.get()
            try:
                self._send(first)
            except Exception as exc:  # the edge of the thread: what is shown is never worth a worker
                log.info("job not shown", extra={"reason": type(exc).__name__})
                time.sleep(QUIET_SECONDS)

    def _send(self, told: FlowerEvent) -> None:
        """Send what waits over one connection; it is kept while more comes."""
        with (
            self._app.connection_for_write() as connection,
            self._app.events.Dispatcher(connection, hostname=self._node, buffer_while_offline=False) as dispatcher,
        ):
            while True:
                dispatcher.send(told[0], **told[1])
                told = self._waiting.get()


def _error(failure: Failure) -> Mapping[str, str]:
    return {"exception": f"{failure.reason_code}: {failure.error}", "traceback": ""}
