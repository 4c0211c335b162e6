"""The lines of the overview's charts."""

from datetime import UTC, datetime, timedelta

from aftermind.telemetry.metric_series import series
from aftermind.types.job_admin import MetricSample

AT = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_stages_are_named_as_on_the_screens() -> None:
    buckets = {
        f'aftermind_freshness_seconds_bucket{{le="{le}",stage="{stage}"}}': 1.0
        for stage in ("stored", "mined")
        for le in ("1.0", "+Inf")
    }

    drawn = series([MetricSample(at=AT + place * MINUTE, over=MINUTE, series=buckets) for place in range(2)])

    stages = drawn["stages"]
    assert isinstance(stages, dict)
    assert set(stages) == {"stored", "extracted"}
