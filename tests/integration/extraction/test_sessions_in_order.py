"""Sessions of one user whose extraction runs out of their order, as after a bulk import."""

from datetime import UTC, datetime

import pytest

from aftermind import Memory, Message, Settings
from aftermind.types import JobKind
from tests.support.learning import AT_ONCE

OFFLINE = Settings(embedder="hash", extractor="rules", **AT_ONCE)


@pytest.mark.parametrize(
    ("earlier", "later", "current"),
    [
        ("I live in Berlin.", "I meant Bern, not Berlin.", ["Bern"]),
        ("I have a cat named Biscuit.", "Biscuit died.", []),
        ("I work at Zalando.", "I left Zalando.", []),
        ("I live in Ghent.", "I have lived in Bruges since 2020.", ["Bruges"]),
    ],
)
async def test_a_correction_that_is_extracted_first_waits_for_what_it_corrects(
    earlier: str, later: str, current: list[str]
) -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.job_admin.pause(kind=JobKind.EXTRACT, reason="a test", actor="test")
        receipts = []
        for text, year in ((later, 2024), (earlier, 2022)):
            said = Message.user(text, occurred_at=datetime(year, 5, 1, tzinfo=UTC))
            receipts.append(await memory.remember([said], user_id="ana", session_id=str(year)))
            await receipts[-1].stored(timeout=30)
        await memory.job_admin.resume(kind=JobKind.EXTRACT, actor="test")
        for receipt in receipts:
            await receipt.extracted(timeout=30)

        assert [fact.object for fact in await memory.facts.query(user_id="ana")] == current
