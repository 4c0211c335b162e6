"""Words in every script, and the language of a namespace: turns are found by other forms of their words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aftermind import Episode, Memory, Settings, errors
from tests.support.servers import Database
from tests.support.workers import environment, workers

LANGUAGES = {"german-*": "german", "german-but-french": "french"}
PATIENT: dict[str, Any] = {  # Any: of each setting
    "embedder": "hash",
    "recall_budget_seconds": 60.0,
    "query_embedding_budget_seconds": 60.0,
    "namespace_languages": LANGUAGES,
}


async def _found(memory: Memory, question: str, **scope: str) -> list[str]:
    """The contents of the messages that share a word with the question."""
    matches = await memory.recall_scored(question, mode="lexical", load=["history"], **scope)
    return [each.item.content for each in matches if isinstance(each.item, Episode) and each.lexical_score]


@pytest.mark.parametrize("store", ["inmemory", "sqlite"])
async def test_a_namespace_stems_in_its_language(store: str, tmp_path: Path) -> None:
    url = "inmemory" if store == "inmemory" else f"sqlite:{tmp_path}/bot.db"
    async with Memory(url, settings=Settings(**PATIENT, state_dir=tmp_path / "state")) as memory:
        for namespace in ("german-shop", "german-but-french", "other"):
            receipt = await memory.remember("Alte Bücher", user_id="ann", namespace=namespace)
            await receipt.stored(timeout=30)

        # The language of texts as short as these cannot be detected.
        assert await _found(memory, "Buch?", user_id="ann", namespace="german-shop") == ["Alte Bücher"]
        assert await _found(memory, "Buch?", user_id="ann", namespace="german-but-french") == []
        assert await _found(memory, "Buch?", user_id="ann", namespace="other") == []


async def test_pending_stored_and_long_turns_are_stemmed_in_the_language_of_their_namespace(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    long = "Alte Bücher. " + "1234 " * 1_000
    env = environment(database.relay_url, redis_url, AFTERMIND_NAMESPACE_LANGUAGES=json.dumps(LANGUAGES))
    async with Memory(database.app_url, broker=redis_url, settings=Settings(**PATIENT)) as memory:
        receipts = [
            await memory.remember(["Alte Bücher", long], user_id="ann", namespace=namespace)
            for namespace in ("german-shop", "other")
        ]
        pending = await _found(memory, "Buch?", user_id="ann", namespace="german-shop")
        with workers(env, tmp_path):
            for receipt in receipts:
                await receipt.stored(timeout=60)
        stored = await _found(memory, "Buch?", user_id="ann", namespace="german-shop")
        in_other = await _found(memory, "Buch?", user_id="ann", namespace="other")

    assert sorted(pending) == sorted(stored) == sorted(["Alte Bücher", long])
    assert in_other == []


@pytest.mark.parametrize(
    ("languages", "said"),
    [
        ({"acme": "klingon"}, "NAMESPACE_LANGUAGES"),
        ({"a*b": "german"}, "a rule is a namespace"),
        ({"": "german"}, "rule"),
    ],
)
def test_a_language_without_a_stemmer_is_refused_before_anything_is_stored(
    languages: dict[str, str], said: str
) -> None:
    with pytest.raises(errors.InvalidSettings, match=said):
        Memory("inmemory", settings=Settings(namespace_languages=languages))


@pytest.mark.parametrize(
    ("question", "turns"),
    [
        ("부산", ["나는 부산에 살아요.", "부산은 크다", "부산에서는 비가 온다"]),
        ("cafe resume", ["I left my résumé there.", "A CAFÉ by the sea"]),
        ("naïve", ["Naive of me"]),
        ("🐶", ["Look 🐶❤️"]),
        ("東京", ["私は東京に住んでいます"]),
        ("دمشق", ["أعيش في دمشق"]),
    ],
)
async def test_words_of_every_script_are_found(question: str, turns: Sequence[str]) -> None:
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        for content in (*turns, "Nothing to see."):
            await (await memory.remember(content, user_id="ann")).stored(timeout=30)

        assert sorted(await _found(memory, question, user_id="ann")) == sorted(turns)
