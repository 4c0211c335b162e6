"""A dry run of one item of a replay plan: what it would change, found by doing all of it but the writing."""

from collections.abc import Mapping, Sequence

from aftermind.types import JobId, Lease
from aftermind_tasks import reextract
from aftermind_tasks.job_outcome_types import Outcome
from aftermind_tasks.runtime import Runtime


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Note for each lease which facts its item would add and supersede."""
    return {lease.job.id: await reextract.foresee(runtime, lease) for lease in leases}
