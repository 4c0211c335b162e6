"""The drop-in for loomflow: its documented calls, with loomflow's own agent."""

import ast
import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from loomflow.core.protocols import Memory as MemoryProtocol
from loomflow.core.types import Episode, Fact, Role
from loomflow.core.types import Message as LoomMessage
from loomflow.model.echo import EchoModel

from aftermind import Memory, Message, Settings, errors
from aftermind.integrations.loomflow import (
    AftermindMemory,
    Agent,
    LazyMemory,
    RunContext,
    recall_graph,
    set_run_context,
    tool,
)
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def episode(text: str, answer: str = "Noted.", **fields: Any) -> Episode:
    return Episode(**{"session_id": "s1", "user_id": "alice", "input": text, "output": answer, **fields})


async def test_an_episode_is_recalled_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.loomflow import AftermindMemory
        found = await AftermindMemory(memory).recall("Where do I live?", user_id="alice")
        return [each.model_dump(mode="json") for each in found]
    """
    given = episode("I live in Oslo.", tool_transcript=[LoomMessage(role=Role.TOOL, content="x" * 20_000)])
    async with standing_replica(database):
        await AftermindMemory(memory).remember(given)
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == [given.model_dump(mode="json")]


async def test_an_episode_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    async def write() -> None:
        given = episode("I live in Oslo.")
        await AftermindMemory(memory).remember(given)
        await AftermindMemory(memory).remember(given)

    said = await stored_after_a_kill(memory, settings, tmp_path, write, user_id="alice")

    assert said == ["I live in Oslo.", "Noted."]


async def test_episodes_are_found_by_query_time_and_session(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    given = [
        episode(f"I like {what}.", occurred_at=NOW + timedelta(days=day), session_id=f"s{day}")
        for day, what in enumerate(("tea", "jazz", "rain"))
    ]
    for each in given:
        await mem.remember(each)

    assert isinstance(mem, MemoryProtocol)
    assert [each.id for each in await mem.recall("Do I like jazz?", limit=1, user_id="alice")] == [given[1].id]
    scored = await mem.recall_scored("I like rain", limit=3, user_id="alice", alpha=0.0)
    assert scored[0].episode == given[2]
    assert scored[0].score >= scored[-1].score
    assert scored[0].bm25_score is not None
    times = (NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    assert [each.id for each in await mem.recall("I like", time_range=times, user_id="alice")] == [given[0].id]
    assert await mem.recall("jazz", user_id="bob") == await mem.recall("jazz") == []
    messages = await mem.session_messages("s1", user_id="alice")
    assert [(each.role, each.content) for each in messages] == [(Role.USER, "I like jazz."), (Role.ASSISTANT, "Noted.")]


async def test_an_episode_with_a_large_output_is_kept_with_its_input(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    given = episode(
        "Read the file.", "x" * 300_000, tool_transcript=[LoomMessage(role=Role.TOOL, content="y" * 300_000)]
    )

    assert await mem.remember(given) == given.id

    (found,) = (await mem.export(user_id="alice")).episodes
    assert (found.id, found.input, found.occurred_at) == (given.id, "Read the file.", given.occurred_at)
    assert re.fullmatch(r"x{262000,}\n\[cut: 300,000 bytes, sha256 \w{64}\]", found.output)
    assert "300000 characters" in found.tool_transcript[0].content


async def test_an_undone_message_is_in_no_session_and_no_episode() -> None:
    async with memory_of_one_process() as memory:
        mem = AftermindMemory(memory)
        await mem.remember(episode("I live in Oslo.", session_id="s1"))
        await undo_oldest(memory, user_id="alice")

        assert [each.content for each in await mem.session_messages("s1", user_id="alice")] == ["Noted."]
        assert "Oslo" not in str((await mem.export(user_id="alice")).episodes)


async def test_first_appends_to_a_block_at_the_same_time_are_all_kept(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    await asyncio.gather(*(mem.append_block("human", text, user_id="alice") for text in ("tea", "jazz")))

    (block,) = await mem.working(user_id="alice")
    assert sorted(block.content.split("\n")) == ["jazz", "tea"]


async def test_a_profile_counts_every_fact() -> None:
    async with memory_of_one_process() as memory:
        mem = AftermindMemory(memory)
        for number in range(1_005):
            await memory.facts.add("user", "likes", f"tea {number}", user_id="alice")

        assert (await mem.profile(user_id="alice")).fact_count == 1_005


async def test_blocks_facts_profile_export_and_forget_are_of_one_user(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    await mem.update_block("human", "Alice.", user_id="alice")
    await mem.append_block("human", "Likes tea.", user_id="alice")
    first = await mem.facts.append(Fact(user_id="alice", subject="user", predicate="lives_in", object="Tokyo"))
    await mem.facts.append(Fact(user_id="alice", subject="user", predicate="lives_in", object="Paris"))
    await mem.remember(episode("I live in Paris."))

    await mem.update_block("notes", "None.", user_id="alice")
    blocks = [(each.content, each.pinned_order) for each in await mem.working(user_id="alice")]
    assert blocks == [("Alice.\nLikes tea.", 0), ("None.", 1)]
    assert {each.object for each in await mem.facts.query(subject="user", user_id="alice")} == {"Paris", "Tokyo"}
    now = datetime.now(UTC)
    assert [each.object for each in await mem.facts.query(valid_at=now, user_id="alice")] == ["Paris"]
    assert [each.object for each in await mem.recall_facts("Where does she live?", user_id="alice")] == ["Paris"]
    then = await mem.facts.query(object_="Tokyo", user_id="alice")
    at = then[0].valid_from
    lived = await mem.recall_facts("Where does she live?", valid_at=at, user_id="alice")
    assert [each.object for each in lived] == ["Tokyo"]
    assert first
    profile = await mem.profile(user_id="alice")
    assert (profile.episode_count, profile.fact_count) == (1, 2)
    assert {each.object for each in profile.sample_facts} == {"Paris", "Tokyo"}
    export = await mem.export(user_id="alice")
    assert ([each.input for each in export.episodes], len(export.blocks)) == (["I live in Paris."], 2)
    assert "Paris" in export.model_dump_json()
    assert await mem.forget(user_id="bob") == 0
    await mem.update_block("human", "Bob.", user_id="bob")
    assert await mem.forget(user_id="bob") == 1
    assert await mem.forget(user_id="alice") > 0
    assert await mem.recall("live", user_id="alice") == []
    assert (await mem.export(user_id="alice")).episodes == []


async def test_a_session_has_the_tool_calls_that_an_agent_persists(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    answer = LoomMessage(role=Role.TOOL, content="18 degrees", tool_call_id="t1")
    await mem.remember(episode("How warm is it?", "18 degrees.", tool_transcript=[answer]))

    said = await mem.session_messages("s1", user_id="alice")

    assert [(each.role, each.content) for each in said] == [
        (Role.USER, "How warm is it?"),
        (Role.TOOL, "18 degrees"),
        (Role.ASSISTANT, "18 degrees."),
    ]
    assert said[1] == answer


async def test_alpha_weighs_meaning_against_words(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    for text in ("I like rain.", "I like jazz and tea.", "I sing."):
        await mem.remember(episode(text))

    async def found(alpha: float) -> dict[str, float]:
        scored = await mem.recall_scored("I like rain and jazz", limit=3, user_id="alice", alpha=alpha)
        return {each.episode.input: each.score for each in scored}

    by_words, by_meaning = list(await found(0.0)), list(await found(1.0))
    for alpha in (0.1, 0.9):
        ranks = [(by_meaning, alpha), (by_words, 1 - alpha)]
        expected = {
            text: sum(weight / (61 + places.index(text)) for places, weight in ranks if text in places)
            for text in {*by_words, *by_meaning}
        }
        scores = await found(alpha)
        assert scores == pytest.approx(expected)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(errors.InvalidQuery, match="alpha"):
            await found(alpha)


async def test_a_graph_of_facts_is_recalled_as_it_is_and_as_it_was(memory: Memory) -> None:
    mem = AftermindMemory(memory)
    for predicate, about, valid_from in (
        ("works_at", ("alice", "acme"), NOW),
        ("works_at", ("alice", "initech"), NOW + timedelta(days=30)),
        ("operates_in", ("acme", "tokyo"), NOW),
    ):
        given = Fact(user_id="alice", subject=about[0], predicate=predicate, object=about[1], valid_from=valid_from)
        await mem.facts.append(given)

    async def paths(user: str, at: datetime | None = None) -> list[str]:
        found = await recall_graph(mem.facts, "Where does Alice's employer operate?", user_id=user, valid_at=at)
        return [each.render() for each in found]

    assert await paths("alice") == ["alice —works_at→ initech"]
    then = await paths("alice", NOW + timedelta(days=1))
    assert then == ["alice —works_at→ acme", "alice —works_at→ acme —operates_in→ tokyo"]
    assert await paths("bob") == []
    assert await mem.facts.delete(user_id="bob") == 0
    assert await mem.facts.delete(user_id="alice") == await mem.facts.count(user_id="alice") + 3 == 3


async def test_the_agent_takes_a_url_and_continues_a_session(tmp_path: Path) -> None:
    @tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    url = f"sqlite:{tmp_path / 'bot.db'}"
    agent = Agent("Be brief.", model="echo", memory=url, tools=[weather])
    context = RunContext(user_id="alice", session_id="s1")
    await agent.run("I live in Oslo.", user_id="alice", session_id="s1")
    async with set_run_context(context.with_overrides(session_id="s2")):
        await agent.run("Where do I live?", user_id="alice", session_id="s2")
    await agent._memory.aclose()

    async with Memory(url) as reopened:
        mem = AftermindMemory(reopened)
        assert [each.input for each in (await mem.export(user_id="alice")).episodes] == [
            "I live in Oslo.",
            "Where do I live?",
        ]


async def test_an_agent_answers_without_a_memory_that_fails(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("Be brief.", model="echo", memory=AftermindMemory(memory))

    result = await agent.run("Hello.", user_id="x" * 600, session_id="s1")  # an id that is too long

    assert "Hello." in result.output
    assert "a run was not remembered" in caplog.text
    assert "Traceback" not in caplog.text
    with pytest.raises(errors.InvalidScope):
        await AftermindMemory(memory).recall("Hello.", user_id="x" * 600)


async def test_an_agent_without_a_named_store_remembers_in_memory_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AFTERMIND_DATABASE_URL", "AFTERMIND_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERMIND_STATE_DIR", str(tmp_path))
    agent = Agent("Be brief.", model="echo")

    await agent.run("I live in Oslo.", user_id="alice", session_id="s1")

    (known,) = await agent._memory.recall("Where do I live?", user_id="alice")
    assert known.input == "I live in Oslo."
    assert "the agent's memory ends with the process" in caplog.text
    await agent._memory.aclose()


async def test_a_lazy_memory_of_loomflow_connects_at_its_first_use(memory: Memory) -> None:
    async def build() -> AftermindMemory:
        return AftermindMemory(memory)

    lazy = LazyMemory(build, description="aftermind")
    assert not lazy.is_ready
    await lazy.remember(episode("I live in Oslo."))

    assert [each.input for each in await lazy.recall("Where do I live?", user_id="alice")] == ["I live in Oslo."]


class Sees(EchoModel):
    """A model that keeps what it was sent."""

    seen: list[LoomMessage]

    async def complete(self, messages: list[LoomMessage], **options: Any) -> Any:
        self.seen = list(messages)
        return await super().complete(messages, **options)


EPISODE = re.compile(r"- \[\S+\] (['\"].*['\"]) -> (['\"].*['\"])")


BLOCK = re.compile(r"""<(?:block name=(?:"[^"<>\n]*"|'[^'<>\n]*')|[\w-]+)>\n[^<>]*\n</[\w-]+>""")


def split_seed(prompt: str) -> tuple[str, str]:
    """A block is an element, a fact a line, an episode a line with two literals of Python: what there is but these."""
    rest, said = [], ""
    for line in BLOCK.sub("", prompt, count=1).splitlines():
        if found := EPISODE.fullmatch(line):
            said += "".join(map(ast.literal_eval, found.groups()))
        elif not re.fullmatch(r"(system: )?(Known facts:|Relevant past episodes:|)|- user says [^<>]*", line):
            rest.append(line)
    return "\n".join(rest), said


async def test_attacks_stay_in_their_place_of_the_seed(memory: Memory) -> None:
    model, mem = Sees(), AftermindMemory(memory)
    agent = Agent("Be brief.", model=model, memory=mem)

    async def tell(user: str, message: Message) -> None:
        await memory.remember([message], user_id=user)
        await memory.facts.add("user", "says", message.content, user_id=user)
        name = message.content.replace("\x00", "").encode("utf-8", "replace")[:128].decode("utf-8", "ignore")
        await mem.update_block(name, message.content, user_id=user)

    async def ask(user: str, question: str) -> tuple[str, str]:
        (said,) = await memory.history(user_id=user)
        await agent.run(said.content, user_id=user, session_id="s2")
        instructions, *others, asked = model.seen
        assert asked.content == said.content
        return instructions.content, "\n".join(f"{each.role.value}: {each.content}" for each in others)

    await assert_attacks_stay_data(memory, ask, tell=tell, split=split_seed)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("loomflow.md", tmp_path)

    assert "I live in Oslo." in shown
