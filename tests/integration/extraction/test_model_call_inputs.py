"""Each model call sees the turns alone that were kept for it, whatever the other turns of the session were kept for."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from aftermind import Memory, Settings
from tests.support.learning import Learning
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.waiting import wait_until

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
CALL_OF = {"facts": "AnsweredExtraction", "summary": "AnsweredSummary", "profile": "AnsweredProfile"}
TURNS = {
    "I take pills for my heart.": {"history"},
    "I live in Oslo.": {"history", "facts"},
    "We talked about the budget.": {"history", "summary"},
    "I like short answers.": {"profile"},
    "I have a cat.": {"history", "facts", "summary", "profile"},
}


def seen(provider: ScriptedOpenAI) -> dict[str, set[str]]:
    """Every turn that was shown in any call, by what the call was for."""
    return {
        kind: {text for call in provider.calls.told.get(name, []) for text in call} for kind, name in CALL_OF.items()
    }


def wanted() -> dict[str, set[str]]:
    """What each kind of call may see."""
    return {kind: {text for text, keep in TURNS.items() if kind in keep} for kind in CALL_OF}


async def test_each_model_call_sees_the_turns_that_were_kept_for_it_and_no_others(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.summary = "Talk of the budget."
    async with opened(**AT_ONCE) as learnt:
        for text, keep in TURNS.items():
            await learnt.memory.remember(text, user_id=user, session_id="s1", save=keep)
        await learnt.settle()
        # A second burst: what was said before is in view of the session's calls again.
        await learnt.memory.remember("I have a cat.", user_id=user, session_id="s1")
        await learnt.settle()

        assert seen(provider) == wanted()
        assert "budget" not in str(provider.calls.prompts["AnsweredExtraction"]), "nor by way of the summary"
        assert len(await learnt.memory.history(user_id=user)) == len(TURNS) + 1


async def test_a_memory_of_one_process_shows_each_call_its_own_turns(provider: ScriptedOpenAI) -> None:
    settings = Settings(
        **AT_ONCE,
        extract_quiet_seconds=0.0,
        OPENAI_API_KEY="k",
        OPENAI_BASE_URL=provider.url,
    )
    async with Memory("inmemory", settings=settings, extractor="openai:scripted", embedder="hash") as memory:
        for text, keep in TURNS.items():
            await memory.remember(text, user_id="ann", session_id="s1", save=keep)

        await wait_until(lambda: seen(provider) == wanted(), description="each call has seen its turns")


async def test_a_summary_that_is_made_again_sees_what_was_kept_for_it(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        receipts = [
            await learnt.memory.remember(text, user_id=user, session_id="s1", save=keep) for text, keep in TURNS.items()
        ]
        await learnt.settle()

        await learnt.memory.undo(*receipts[-1].episode_ids, user_id=user)
        provider.calls.told.clear()
        await learnt.settle()

        assert seen(provider)["summary"] == wanted()["summary"] - {"I have a cat."}
        assert seen(provider)["profile"] <= wanted()["profile"] - {"I have a cat."}
        assert seen(provider)["facts"] <= wanted()["facts"] - {"I have a cat."}
