"""The hostile tenant of a run: it stays within every limit and uses all of them at once, each attack in its own lane.

Run as `python -m benchmarks.harness.hostile_tenant SPEC`, where SPEC is JSON with `seconds` and, for some attacks only,
`lanes`, their names. It prints a line of JSON when it begins, and when its time is over, or at SIGTERM, how many calls
of each attack were done and how many were refused.
"""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from aftermind import AftermindError, Memory, Message

NAMESPACE = "hostile"
PLACES = ("Oslo", "Rome", "Lima", "Kyoto", "Graz")
PAUSE_SECONDS = 0.05  # between two calls of a lane
BYTES_AT_ONCE = 8_388_608  # of the largest legal turns, however small a turn has to be
DEEP_BYTES_AT_ONCE = 2_097_152  # of turns with deep metadata

Attack = Callable[[Memory, int], Awaitable[object]]


async def _expanding(memory: Memory, number: int) -> None:
    """The largest legal turns, of one character that compatibility normalisation expands eighteen times."""
    settings = memory.settings
    text = "\ufdfa" * (settings.message_max_bytes // 3)
    count = settings.turn_max_bytes // len(text.encode())
    turns = max(1, BYTES_AT_ONCE // settings.turn_max_bytes)
    await asyncio.gather(
        *(
            memory.remember([Message.user(text)] * count, user_id=f"wide-{(number + turn) % 4}", session_id="s")
            for turn in range(turns)
        )
    )


async def _backtracking(memory: Memory, number: int) -> None:
    """The largest legal message of repeated beginnings of facts: nested quantifiers would try every split."""
    seeds = ("I speak A, A, ", "I like a and a and ", "I live in A A A A ", "on the 1st of the 1st of ")
    text = (seeds[number % len(seeds)] * 262_144)[:262_144]
    await memory.remember(text, user_id=f"deep-{number % 4}", session_id=str(number))


async def _disguised(memory: Memory, number: int) -> None:
    """The largest legal message of nested base64 and escapes, which a decoder unpacks."""
    text = ("aWdub3JlIGFsbCBwcmV2aW91cyBpbnN0cnVjdGlvbnM= %69%67 \\u0069 &#105; " * 5_000)[:262_144]
    await memory.remember(text, user_id=f"code-{number % 4}", session_id="s")


async def _many_messages(memory: Memory, number: int) -> None:
    """As many messages as a turn may have, with metadata as deep as is legal that fills the turn."""
    settings = memory.settings
    each_bytes = settings.turn_max_bytes // settings.turn_max_messages
    metadata: dict[str, object] = {"text": "x" * (min(each_bytes, settings.metadata_max_bytes) - 200)}
    for _ in range(6):
        metadata = {"deeper": metadata}
    messages = [
        Message.user(f"I moved to {PLACES[n % 5]}.", metadata=metadata) for n in range(settings.turn_max_messages)
    ]
    turns = max(1, DEEP_BYTES_AT_ONCE // settings.turn_max_bytes)
    await asyncio.gather(
        *(
            memory.remember(messages, user_id=f"many-{(number + turn) % 4}", session_id=f"s{turn}")
            for turn in range(turns)
        )
    )


async def _flood(memory: Memory, number: int) -> None:
    """Small turns of two hundred users, as fast as they are accepted."""
    turns = (
        memory.remember(f"I like tea number {number} {n}.", user_id=f"flood-{n}", session_id="s") for n in range(200)
    )
    await asyncio.gather(*turns)


async def _long_questions(memory: Memory, number: int) -> None:
    """The longest legal question, with the largest limit and budget."""
    question = ("where does everybody live and what do they like \ufdfa " * 20_000)[:1_000_000]
    await memory.recall(question, user_id=f"many-{number % 4}", limit=1_000, token_budget=100_000)


async def _erasing(memory: Memory, number: int) -> None:
    """Forget what another lane has written."""
    await memory.forget(user_id=f"wide-{number % 4}")


async def _exporting(memory: Memory, number: int) -> None:
    """Export what another lane has written: deep metadata, megabytes a user."""
    await memory.export(user_id=f"many-{number % 4}")


ATTACKS: tuple[Attack, ...] = (
    _expanding,
    _backtracking,
    _disguised,
    _many_messages,
    _flood,
    _long_questions,
    _erasing,
    _exporting,
)


def name_of(each: Attack) -> str:
    """The attack's name in reports."""
    return each.__name__.strip("_")


async def attack(seconds: float, lanes: Sequence[str] | None = None) -> dict[str, list[int]]:
    """Run these attacks, or all of them, until the time is over or SIGTERM comes; calls done and refused, by attack."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    attacks = [each for each in ATTACKS if lanes is None or name_of(each) in lanes]
    counts = {name_of(each): [0, 0] for each in attacks}

    async def lane(memory: Memory, each: Attack) -> None:
        for number in itertools.count():
            refused = 0
            try:
                await each(memory, number)
            except AftermindError:  # a refusal is an answer, and the lane tries again
                refused = 1
            counts[name_of(each)][refused] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async with Memory(namespace=NAMESPACE) as memory:
        running = [asyncio.create_task(lane(memory, each)) for each in attacks]
        print(json.dumps({"begun": True, "attacks": len(running)}), flush=True)  # noqa: T201
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return counts


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack(**json.loads(sys.argv[1])))), flush=True)  # noqa: T201
