"""The console's table of jobs: what each one waits for."""

from datetime import UTC, datetime
from uuid import uuid4

from aftermind.types import Job, JobId, JobKind, JobState, Scope
from aftermind.web.pages.rendering import TEMPLATES

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def _job(state: JobState, error: str | None = None) -> Job:
    return Job(
        id=JobId(uuid4()),
        kind=JobKind.EXTRACT,
        scope=Scope(user_id="ann"),
        state=state,
        effect_key="e",
        attempts=1,
        run_at=NOW,
        created_at=NOW,
        updated_at=NOW,
        error=error,
        payload={},
        lost_leases=0,
    )


def test_a_job_that_is_paused_has_the_pause_as_its_reason() -> None:
    held, other = _job(JobState.QUEUED, "boom"), _job(JobState.RETRYING, "crash")
    macros = TEMPLATES.env.get_template("_ui.html").make_module({"link": lambda *_, **__: "#"})

    shown = str(macros.jobs_table([held, other], "Jobs", NOW, {held.id: "openai is paused for 9 s"}))  # type: ignore[attr-defined]

    assert "openai is paused for 9 s" in shown
    assert ">paused<" in shown
    assert "boom" not in shown
    assert "crash" in shown
