"""`aftermind eval`: questions with known evidence, of a file or of stored memories."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.cli import make_app_for
from aftermind.cli.evaluate import parse_assignments
from aftermind.evaluation import questions_from_facts
from aftermind.evaluation.datasets import GoldConversation, GoldQuestion
from aftermind.evaluation.run import Variant, evaluate
from aftermind.evaluation.score_comparison import ALL, summarise
from aftermind.recall import RecallOptions
from tests.support.fork_server import run_module
from tests.support.servers import Database
from tests.support.workers import environment

# Conversations of a file are loaded into a memory inside the process: nothing is connected.
UNREACHABLE = ("postgresql://nobody@127.0.0.1:1/none", "redis://127.0.0.1:1")
PAST = datetime(2001, 1, 1, tzinfo=UTC)
DIALOGUE = [
    "I adopted a cat called Dot.",
    "The weather was awful on Tuesday.",
    "My sister studies law in Bergen.",
    "I sold the old bicycle.",
]


def _locomo(folder: Path) -> Path:
    turns = [{"id": f"D1:{place}", "speaker": "Ann", "text": text} for place, text in enumerate(DIALOGUE)]
    questions = [
        {"question": "What is the name of the cat?", "category": 1, "evidence": ["D1:0"]},
        {"question": "What does the sister study?", "category": 4, "evidence": ["D1:2"]},
    ]
    session = {"n": 1, "at": "1:56 pm on 8 May, 2023", "turns": turns}
    path = folder / "locomo.json"
    path.write_text(json.dumps([{"id": "c1", "sessions": [session], "questions": questions}]))
    return path


@cache
def _patient() -> Settings:
    return Settings(
        embedder="hash",
        extractor="rules",
        extract_quiet_seconds=0.0,
        recall_budget_seconds=60.0,
        query_embedding_budget_seconds=60.0,
    )


def _eval(store: str, redis_url: str, *arguments: str) -> "CompletedProcess[str]":
    return run_module(["aftermind.cli", "eval", *arguments], env=environment(store, redis_url))


def _variant(**options: Any) -> Variant:  # Any: of each option
    chosen: RecallOptions = {**options}  # type: ignore[typeddict-item]
    return Variant(settings=_patient(), options=chosen)


async def _measured(gold: list[GoldConversation], memory: Memory, *variants: Variant) -> Mapping[str, Any]:
    outcomes = await evaluate(gold, variants or [_variant()], open_memory=lambda *_: memory, budgets=[500])
    return summarise(outcomes).to_json()


async def test_two_settings_are_compared_on_the_conversations_of_a_file(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"

    done = await asyncio.to_thread(
        _eval,
        *UNREACHABLE,
        str(_locomo(tmp_path)),
        "--against=limit=1",
        "--against=load=history",
        "--set=embedder=hash",
        "--budget=200",
        f"--json={figures}",
    )

    assert done.returncode == 0, done.stderr
    assert "limit=1" in done.stdout
    assert "95 % interval" in done.stdout
    found = json.loads(figures.read_text())
    assert found["questions"] == {ALL: 2, "1": 1, "4": 1}
    for variant in found["variants"]:
        assert variant[ALL]["recall@5"] == 1.0
        assert variant[ALL]["in_block@200"] == 1.0
    assert found["differences"]["recall@5"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    figures_of_each = {each["question"]: [one["recall@5"] for one in each["variants"]] for each in found["outcomes"]}
    assert figures_of_each == {"What is the name of the cat?": [1.0, 1.0], "What does the sister study?": [1.0, 1.0]}


async def test_own_questions_have_evidence_by_text_or_id(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        await memory.remember("I adopted a cat called Dot.", user_id="ann")
        receipt = await memory.remember("My sister studies law in Bergen.", user_id="ann")
    asked = [
        {"question": "What is my cat called?", "user_id": "ann", "evidence": "cat called DOT", "category": "pets"},
        {"question": "What does my sister study?", "user_id": "ann", "evidence": [str(receipt.episode_ids[0])]},
        {"question": "Who called?", "user_id": "ann", "evidence": "never said"},
        {"question": "What did I buy and what is my cat called?", "user_id": "ann", "evidence": ["cat called", "no"]},
    ]
    file, figures = tmp_path / "own.jsonl", tmp_path / "figures.json"
    file.write_text("\n".join(map(json.dumps, asked)))

    done = await asyncio.to_thread(
        _eval,
        database.relay_url,
        redis_url,
        str(file),
        f"--json={figures}",
    )

    assert done.returncode == 0, done.stderr
    assert "Left out, because the evidence is not stored: 1\n- ann: Who called?\n" in done.stdout
    assert "Not all of the evidence is in the largest block: 1\n- ann: What did I buy" in done.stdout
    table = [line.split() for line in done.stdout.splitlines() if len(line) <= 80]  # columns, without a terminal
    assert [row[:2] for row in table if row and row[0] in (ALL, "pets")] == [[ALL, "3"], ["pets", "1"]]
    found = json.loads(figures.read_text())
    assert found["variants"][0]["pets"]["recall@5"] == 1.0
    assert [each["question"] for each in found["not_stored"]] == ["Who called?"]
    (missed,) = found["missed"]
    assert (found["questions"][ALL], missed["measures"]["in_block@1000"]) == (3, 0.5)


def test_an_evaluation_without_any_stored_evidence_ends_with_1(tmp_path: Path) -> None:
    file, figures = tmp_path / "own.jsonl", tmp_path / "figures.json"
    file.write_text('{"question": "Who called?", "user_id": "ann", "evidence": "never stored"}\n')

    found = CliRunner().invoke(
        make_app_for(["evaluate"]),
        ["eval", str(file), f"--json={figures}"],
        env={"AFTERMIND_DATABASE_URL": f"sqlite:{tmp_path / 'm.db'}"},
    )

    assert (found.exit_code, json.loads(figures.read_text())["variants"]) == (1, [])
    assert "No evidence of any question is stored" in found.stderr


async def test_a_gold_set_is_drawn_from_facts_and_their_sources() -> None:
    async with Memory("inmemory", settings=_patient()) as memory:
        for text in ("I live in Bergen.", "I work at Acme.", "What a day."):
            await (await memory.remember(text, user_id="ann")).extracted()
        await memory.facts.add("user", "likes", "tea", user_id="ann")  # has no source

        gold = await questions_from_facts.draw(memory, await questions_from_facts.every_user(memory))
        found = await _measured(gold, memory)

    (conversation,) = gold
    assert {each.category for each in conversation.questions} == {"lives_in", "works_at"}
    assert found["variants"][0][ALL]["recall@5"] == 1.0


async def test_a_worse_setting_is_found_worse() -> None:
    async with Memory("inmemory", settings=_patient()) as memory:
        evidence = [f"The code of door {place} is {place * 7}." for place in range(12)]
        for text in evidence:
            await (await memory.remember(text, user_id="ann")).embedded()
        questions = [
            GoldQuestion(text=f"code of door {place}", evidence=(text,)) for place, text in enumerate(evidence)
        ]
        gold = [GoldConversation(user_id="ann", questions=questions)]

        found = await _measured(gold, memory, _variant(), _variant(until=PAST))

    difference = found["differences"]["recall@5"]
    assert difference["mean"] < 0
    assert difference["high"] < 0


def test_a_name_that_is_neither_option_nor_setting_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="--set NAME=VALUE --set NAME=VALUE"):
        parse_assignments(["load=facts,limit=5"])
    with pytest.raises(errors.InvalidSettings, match="Did you mean limit"):
        parse_assignments(["limt=5"])
    assert parse_assignments(["mode=lexical", "limit=3", "load=history,facts", "embedder=hash"]) == {
        "mode": "lexical",
        "limit": 3,
        "load": ["history", "facts"],
        "embedder": "hash",
    }
    with pytest.raises(errors.InvalidSettings, match="colour"):
        parse_assignments(["colour=red"])


async def test_two_settings_are_compared_on_a_store_that_one_process_opens(tmp_path: Path) -> None:
    store, file = f"sqlite:{tmp_path}/bot.db", tmp_path / "own.jsonl"
    async with Memory(store, settings=_patient()) as memory:
        for text in DIALOGUE:
            await (await memory.remember(text, user_id="ann")).embedded(timeout=30)
    file.write_text(json.dumps({"question": "What is the cat called?", "user_id": "ann", "evidence": "cat called Dot"}))
    arguments = (str(file), "--against=recall_half_life_days=1", f"--json={tmp_path}/figures.json")

    done = await asyncio.to_thread(_eval, store, "redis://127.0.0.1:1", *arguments)

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [each[ALL]["recall@5"] for each in found["variants"]] == [1.0, 1.0]


def test_an_embedder_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "Who?", "evidence": "Ann"}')
    arguments = ["eval", str(file), "--set=embedder=hash", f"--against=embedder=local:{tmp_path}"]

    done = CliRunner().invoke(make_app_for(["evaluate"]), arguments)

    assert isinstance(done.exception, errors.InvalidSettings)
    assert done.exception.field == "embedder"


def test_a_file_that_does_not_exist_is_named_with_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(make_app_for(["evaluate"]), ["eval", str(tmp_path / "none.jsonl")])

    assert isinstance(done.exception, errors.InvalidGoldSet)
    said = str(done.exception)
    assert f"it cannot be read: [Errno 2] No such file or directory: '{tmp_path}/none.jsonl'. Name a file of" in said
    assert "--from-facts" in said


def test_a_fit_refuses_what_it_would_ignore(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "Who?", "evidence": "Ann"}')

    for ignored in ("--against=limit=5", "--sample=3", "--budget=100", "--extract"):
        done = CliRunner().invoke(make_app_for(["evaluate"]), ["eval", str(file), "--fit", ignored])
        assert isinstance(done.exception, errors.InvalidGoldSet)
        assert "Leave out" in str(done.exception)


def test_a_fit_refuses_a_file_of_conversations_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = _locomo(tmp_path).name

    done = CliRunner().invoke(make_app_for(["evaluate"]), ["eval", file, "--fit"])

    assert str(done.exception).startswith(f"file={file!r}: ")
