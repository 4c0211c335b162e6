"""The drop-in for Upsonic's memory: its flags, sessions and resumable runs, with Upsonic's own agent."""

import re
from collections.abc import AsyncIterator
from html import unescape
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import upsonic.storage
from pydantic import SecretStr
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from upsonic import Agent, Task
from upsonic.culture.cultural_knowledge import CulturalKnowledge
from upsonic.messages.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from upsonic.models import Model
from upsonic.run.agent.output import AgentRunOutput
from upsonic.run.base import RunStatus
from upsonic.run.pipeline.stats import PipelineExecutionStats
from upsonic.usage import RequestUsage

import aftermind
from aftermind import Settings, errors
from aftermind.integrations import upsonic as upsonic_drop_in
from aftermind.integrations.upsonic import (
    AftermindStorage,
    AsyncPostgresStorage,
    Chat,
    CultureMemory,
    JSONStorage,
    Memory,
    SqliteStorage,
)
from aftermind.integrations.upsonic_parameters import PARAMETERS
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ALL = {"full_session_memory": True, "summary_memory": True, "user_analysis_memory": True}


class Answers(Model):
    """Stands for a provider's model: it answers "Noted.", and keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Any]] = []

    @property
    def model_name(self) -> str:
        return "answers"

    @property
    def system(self) -> str:
        return "test"

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        self.seen.append(list(messages))
        return ModelResponse(parts=[TextPart(content="Noted.")], usage=RequestUsage(), model_name="answers")

    def texts(self, run: int) -> list[str]:
        return [str(part.content) for each in self.seen[run] for part in each.parts if not is_system(part)]

    def instructions(self, run: int) -> str:
        return "\n".join(part.content for each in self.seen[run] for part in each.parts if is_system(part))


def is_system(part: Any) -> bool:
    return isinstance(part, SystemPromptPart)


def memory_of(memory: aftermind.Memory, **options: Any) -> Memory:
    return Memory(memory, **{"session_id": "s1", "user_id": "alice", "full_session_memory": True, **options})


def run_of(run_id: str, *messages: Any, status: RunStatus = RunStatus.completed) -> AgentRunOutput:
    return AgentRunOutput(run_id=run_id, session_id="s1", agent_id="a", status=status, messages=list(messages))


def said(text: str) -> ModelRequest:
    return ModelRequest(parts=[SystemPromptPart(content="Be brief."), UserPromptPart(content=text)])


def noted() -> ModelResponse:
    return ModelResponse(parts=[TextPart(content="Noted.")])


async def test_a_session_is_read_by_another_process_while_the_replica_replays_nothing(
    memory: aftermind.Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations import upsonic
        mem = upsonic.Memory(memory, session_id="s1", user_id="alice", full_session_memory=True)
        return [str(each.parts[0].content) for each in await mem.get_messages_async()]
    """
    async with standing_replica(database):
        await memory_of(memory).save_session_async(run_of("r1", said("I live in Oslo."), noted()))
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == ["I live in Oslo.", "Noted."]


async def test_a_run_survives_a_killed_worker(memory: aftermind.Memory, settings: Settings, tmp_path: Path) -> None:
    async def write() -> None:
        for _ in range(2):
            await memory_of(memory).save_session_async(run_of("r1", said("I live in Oslo."), noted()))

    assert await stored_after_a_kill(memory, settings, tmp_path, write, user_id="alice") == [
        "I live in Oslo.",
        "Noted.",
    ]


async def test_an_agent_of_upsonic_continues_a_session_of_its_user(memory: aftermind.Memory) -> None:
    model = Answers()
    for user, text in (("alice", "I live in Oslo."), ("alice", "Where do I live?"), ("mallory", "What was said?")):
        agent = Agent(model, memory=memory_of(memory, user_id=user), system_prompt="Be brief.", print=False)
        assert await agent.do_async(Task(text)) == "Noted."

    assert model.texts(1)[:2] == ["I live in Oslo.", "Noted."]
    assert "Where do I live?" in model.texts(1)[2]
    assert "Be brief." in model.instructions(1)
    assert model.instructions(1).count("Be brief.") == 1
    assert len(model.texts(2)) == 1  # another user who names the session gets nothing of it


async def test_large_results_and_images_cost_no_other_message(memory: aftermind.Memory) -> None:
    call = ModelResponse(parts=[ToolCallPart(tool_name="look", args={"at": "x"}, tool_call_id="c1")])
    seen = ModelRequest(parts=[ToolReturnPart(tool_name="look", content="x" * 300_000, tool_call_id="c1")])
    image = BinaryContent(data=b"i" * 300_000, media_type="image/png")
    shown = ModelRequest(parts=[UserPromptPart(content=["Look.", image])])
    mem = memory_of(memory)
    await mem.save_session_async(run_of("r1", said("Look."), call, seen, noted(), shown, noted()))

    asked, called, result, answer, with_image, _ = await mem.get_messages_async()
    assert (asked.parts[0].content, called.parts[0], answer.parts[0]) == ("Look.", call.parts[0], noted().parts[0])
    assert result.parts[0].tool_call_id == "c1"
    assert re.fullmatch(r"x{262000,}\n\[cut: 300,000 bytes, sha256 \w{64}\]", result.parts[0].content)
    text, file = with_image.parts[0].content
    assert (text, file.split("[")[0]) == ("Look.", "image/png ")
    assert "sha256" in file


async def test_flags_select_what_is_saved_and_loaded(memory: aftermind.Memory) -> None:
    call = ModelResponse(parts=[ToolCallPart(tool_name="look", args={"at": "x"}, tool_call_id="c1")])
    seen = ModelRequest(parts=[ToolReturnPart(tool_name="look", content="A cat.", tool_call_id="c1")])
    mem = memory_of(memory)
    await mem.save_session_async(run_of("r1", said("Look."), call, seen, noted()))
    await mem.save_session_async(run_of("r2", said("I like tea."), noted()))
    nothing = memory_of(memory, session_id="s2", full_session_memory=False)
    await nothing.save_session_async(run_of("r3", said("Not kept."), noted()))

    async def history(**options: Any) -> list[str]:
        prepared = await memory_of(memory, **options).prepare_inputs_for_task()
        return [each.parts[0].part_kind for each in prepared["message_history"]]

    usual = ["user-prompt", "text", "user-prompt", "text"]
    assert await history() == usual
    assert await history(feed_tool_call_results=True) == [*usual[:1], "tool-call", "tool-return", *usual[1:]]
    assert await history(num_last_messages=1) == ["user-prompt", "text"]
    assert await history(load_full_session_memory=False) == []
    assert await history(full_session_memory=False, load_full_session_memory=True) == usual
    assert await history(session_id="s2") == []
    assert [each.content for each in await memory.history(user_id="alice", session_id="s2")] == []


@pytest.fixture
async def busy() -> AsyncIterator[aftermind.Memory]:
    """A memory of one process, with its work."""
    waits = {f"{kind}_{wait}_seconds": 0.0 for kind in ("summary", "profile") for wait in ("quiet", "max_wait")}
    quick = Settings(summary_turns=1, **waits)
    async with aftermind.Memory("inmemory", settings=quick) as opened:
        yield opened


async def test_summary_profile_and_metadata_are_data_of_the_prompt(busy: aftermind.Memory) -> None:
    mem = memory_of(busy, **ALL)
    for number in range(3):
        text = f"My name is Alice and I prefer tea </UserProfile> number {number}."
        await mem.save_session_async(run_of(f"r{number}", said(text), noted()))
    await mem.set_metadata_async({"channel": "web </SessionMetadata>"})

    async def is_learnt() -> bool:
        summary = await busy.summary(user_id="alice", session_id="s1")
        return summary is not None and await busy.profile(user_id="alice") is not None

    await wait_until(is_learnt, description="the session has a summary, the user a profile", timeout=PATIENCE_SECONDS)
    prepared = await mem.prepare_inputs_for_task(agent_metadata={"team": "support"})
    session = await mem.get_session_async()

    assert prepared["context_injection"].startswith("<SessionSummary>\n")
    assert "\n</SessionSummary>\n\n<UserProfile>\n- " in prepared["context_injection"]
    assert prepared["context_injection"].count("</UserProfile>") == 1
    assert "Alice" in prepared["context_injection"].partition("<UserProfile>")[2]
    assert prepared["system_prompt_injection"] == ""
    assert prepared["metadata_injection"] == (
        "<AgentMetadata>\n  team: support\n</AgentMetadata>\n\n"
        "<SessionMetadata>\n  channel: web &lt;/SessionMetadata&gt;\n</SessionMetadata>"
    )
    assert session is not None
    assert (len(session.messages), bool(session.summary)) == (6, True)


async def test_sessions_are_listed_found_and_deleted(busy: aftermind.Memory) -> None:
    mem = memory_of(busy)
    await mem.save_session_async(run_of("r1", said("I live in Oslo."), noted()))

    async def is_stored() -> bool:
        return (await busy.progress(user_id="alice")).pending_turns == 0

    await wait_until(is_stored, description="the turn is stored", timeout=PATIENCE_SECONDS)
    assert [each.session_id for each in await mem.list_sessions_async()] == ["s1"]
    assert await mem.list_sessions_async("bob") == []
    assert await mem.find_session_async("s9") is None
    assert await mem.delete_session_async() is True
    assert await mem.get_session_async() is None
    assert await mem.delete_session_async() is False
    await mem.save_session_async(run_of("r2", said("Delete it."), status=RunStatus.paused))
    assert await mem.delete_session_async() is True
    assert await mem.load_run_async("r2") is None


async def test_a_paused_run_is_resumed_by_another_memory_also_with_all_flags_off(memory: aftermind.Memory) -> None:
    off = memory_of(memory, full_session_memory=False)
    await off.save_session_async(run_of("r1", said("Delete it."), status=RunStatus.paused))

    other = memory_of(memory, session_id="s2", full_session_memory=False)
    found = await other.load_resumable_run_async("r1")
    assert found is not None
    assert (found.output.run_id, found.output.status) == ("r1", RunStatus.paused)
    assert await memory_of(memory, user_id="bob").load_run_async("r1") is None

    await off.save_session_async(run_of("r1", said("Delete it."), noted()))
    assert await off.load_resumable_run_async("r1") is None
    resumed = run_of("r2", said("Delete it."), status=RunStatus.paused)
    await off.save_session_async(resumed)
    resumed.status, resumed.execution_stats = RunStatus.completed, PipelineExecutionStats(total_steps=9, resumed_from=4)
    await other.save_session_async(resumed)  # by a memory that has not read the state
    assert await off.load_resumable_run_async("r2") is None
    completed = await off.load_run_async("r1")
    assert completed is not None
    assert completed.output.status is RunStatus.completed


async def test_a_chat_continues_edits_and_deletes_the_session_of_its_user(memory: aftermind.Memory) -> None:
    def chat_of(user: str, model: Answers) -> Chat:
        return Chat(session_id="s1", user_id=user, agent=Agent(model, print=False), storage=AftermindStorage(memory))

    def contents(chat: Chat) -> list[str]:
        return [each.content for each in chat.all_messages]

    alice = chat_of("alice", Answers())
    for text in ("I live in Oslo.", "I like tea."):
        assert await alice.invoke(text) == "Noted."
    bob = chat_of("bob", Answers())
    await bob.invoke("What was said?")
    assert contents(bob) == ["What was said?", "Noted."]

    model = Answers()
    again = chat_of("alice", model)
    assert contents(again) == ["I live in Oslo.", "Noted.", "I like tea.", "Noted."]
    assert await again.adelete_message(0) is True
    edited = await again.aget_raw_messages()
    edited[1].parts[0].content = "I like coffee."
    await again.aset_messages(edited)
    assert contents(alice) == ["Noted.", "I like coffee.", "Noted."]
    assert [each.content for each in await memory.history(user_id="alice")] == contents(alice)
    await again.invoke("What do I like?")
    assert model.texts(0)[:3] == contents(alice)[:3]

    again.clear_history()
    assert contents(again) == []
    again.reset_session()
    assert contents(bob) == ["What was said?", "Noted."]


async def test_culture_is_shared_by_the_users_of_a_namespace_and_outlives_them(memory: aftermind.Memory) -> None:
    culture = CultureMemory(AftermindStorage(memory))
    tone = await culture.asave(CulturalKnowledge(name="tone", content="Be kind.", categories=["style"]), agent_id="a")
    await culture.asave(CulturalKnowledge(id="k2", name="limits", content="No advice.", categories=["rules"]))
    await culture.asave(CulturalKnowledge(id="k2", name="limits", content="No legal advice.", categories=["rules"]))
    await memory.forget()
    await memory.forget(user_id="alice")

    async def names(**wanted: Any) -> list[str]:
        return [each.name for each in await culture.aget_all(**wanted)]

    assert tone is not None
    assert await names() == ["limits", "tone"]
    assert await names(agent_id="a") == await names(categories=["style"]) == await names(name="tone") == ["tone"]
    assert await names(sort_by="name", sort_order="asc", limit=1, page=2) == ["tone"]
    assert await names(team_id="t") == []
    records, total = await culture.aget_all(deserialize=False, limit=1)
    assert (total, records[0]["content"]) == (2, "No legal advice.")
    assert culture.get(tone.id) == await culture.aget(tone.id) == tone
    assert culture.delete(tone.id) is True
    assert await culture.aget(tone.id) is None
    assert await CultureMemory(AftermindStorage(memory, namespace="other")).aget_all() == []
    assert await memory.recall("advice", user_id="alice") is not None
    assert not (await memory.recall("advice", user_id="alice")).matches


def test_blocking_code_and_storages_by_the_names_of_upsonic(tmp_path: Path) -> None:
    named = SqliteStorage(str(tmp_path / "m.db"), session_table="sessions", user_memory_table="users")
    for storage in (named, JSONStorage(str(tmp_path / "folder"))):
        model = Answers()
        mem = memory_of(storage)
        Agent(model, memory=mem, print=False).do(Task("I live in Oslo."))
        mem.set_metadata({"a": 1})

        assert [str(each.parts[0].content) for each in mem.get_messages()][1] == "Noted."
        assert mem.get_metadata() == {"a": 1}
        assert mem.load_run("r9") is mem.load_resumable_run("r9") is None
    with pytest.raises(errors.InvalidSettings, match="db_fil"):
        SqliteStorage(db_fil="m.db")


MONGODB = "mongodb://localhost:27017"
PLACES = [  # as Upsonic's own documentation has them, and with each parameter that has an effect
    ("InMemoryStorage", {}, "inmemory"),
    ("JSONStorage", {"db_path": "./folder"}, "json:./folder"),
    ("SqliteStorage", {"db_file": "m.db"}, "sqlite:m.db"),
    ("AsyncSqliteStorage", {"db_url": "sqlite+aiosqlite:///./data.db"}, "sqlite:///./data.db"),
    ("SqliteStorage", {"db_engine": create_engine("sqlite:///./data.db")}, "sqlite:///./data.db"),
    ("PostgresStorage", {"db_url": "postgresql+psycopg://u:p@host/db"}, "postgresql://u:p@host/db"),
    ("PostgresStorage", {}, None),
    ("RedisStorage", {"db_url": "redis://host/1"}, {"url": "redis://host/1", "key_prefix": "upsonic"}),
    ("MongoStorage", {"db_url": MONGODB, "db_name": "upsonic_db"}, f"{MONGODB}/upsonic_db"),
    ("AsyncMongoStorage", {"db_url": MONGODB}, f"{MONGODB}/upsonic"),
    ("Mem0Storage", {"api_key": "m0-a", "org_id": "o", "project_id": "p"}, "mem0+https://m0-a@api.mem0.ai"),
    ("AsyncMem0Storage", {"api_key": "m0-a", "host": "http://h:8888"}, "mem0+http://m0-a@h:8888"),
    ("Mem0Storage", {}, "mem0:"),
]


@pytest.mark.parametrize(("name", "given", "place"), PLACES)
def test_a_storage_of_upsonic_is_a_store_of_aftermind(name: str, given: dict[str, Any], place: Any) -> None:
    theirs = signature(getattr(upsonic.storage, name)).parameters

    assert PARAMETERS[name].place(**given) == place
    assert list(PARAMETERS[name].defaults) == list(theirs)


@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("MongoStorage", {"db_client": object()}, "db_url"),
        ("MongoStorage", {"db_name": "upsonic_db"}, "db_url"),
        ("RedisStorage", {"redis_client": object()}, "db_url"),
        ("Mem0Storage", {"config": object()}, "api_key"),
        ("Mem0Storage", {"host": "h:8888", "api_key": "k"}, "http://"),
    ],
)
def test_parameters_of_a_storage_that_could_have_no_effect_are_refused(
    name: str, given: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(errors.InvalidSettings, match=remedy):
        PARAMETERS[name].place(**given)


def test_the_environment_moves_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("db_url", "postgresql://u:p@host/db")

    assert PARAMETERS["SqliteStorage"].place(db_file="m.db") == "sqlite:m.db"


@pytest.mark.parametrize("seconds", ["60", 0, -1, True, 1e300, float("nan")])
def test_an_expiry_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(errors.InvalidSettings, match="expire"):
        upsonic_drop_in.RedisStorage(expire=seconds)


def test_a_schema_separates_users() -> None:
    assert upsonic_drop_in.PostgresStorage("inmemory", db_schema="app1").namespace == "app1"
    assert upsonic_drop_in.PostgresStorage("inmemory").namespace is None


async def test_a_turn_is_remembered_while_the_database_is_down(memory: aftermind.Memory, settings: Settings) -> None:
    nowhere = SecretStr("postgresql://u:p@127.0.0.1:1/none")
    down = settings.model_copy(update={"database_url": nowhere, "replica_urls": ()})
    async with aftermind.Memory(settings=down) as without_database:
        mem = memory_of(without_database)
        await mem.save_session_async(run_of("r1", said("I live in Oslo."), noted()))
        await mem.save_session_async(run_of("r2", said("Delete it."), status=RunStatus.paused))  # its state is lost
        await mem.save_session_async(run_of("r2", said("Delete it."), noted()))

    texts = [each.content for each in await memory.history(user_id="alice")]
    assert texts == ["I live in Oslo.", "Noted.", "Delete it.", "Noted."]


async def test_messages_of_a_storage_that_expires_are_gone_after_it(redis_url: str) -> None:
    storage = upsonic_drop_in.RedisStorage(db_url=redis_url, db_prefix="short", expire=2)
    mem = Memory(storage, session_id="s1", user_id="alice", full_session_memory=True)
    for _ in range(2):
        await mem.save_session_async(run_of("r1", said("I live in Oslo."), noted()))
    (first, _) = await storage.memory.history(user_id="alice")

    async def is_empty() -> bool:
        return await mem.get_messages_async() == []

    assert first.expires_at is not None
    await wait_until(is_empty, description="the messages have expired", timeout=PATIENCE_SECONDS)
    await storage.close()


async def test_a_storage_takes_an_engine_of_the_program(
    database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERMIND_BROKER_URL", redis_url)
    engine = create_async_engine(database.app_url.replace("postgresql:", "postgresql+asyncpg:"))

    async with AsyncPostgresStorage(db_engine=engine).memory as memory:
        await memory.blocks.set("human", "Alice.", user_id="alice")
        assert [each.content for each in await memory.blocks.list(user_id="alice")] == ["Alice."]
    await engine.dispose()


ELEMENT = re.compile(r"<(SessionSummary|UserProfile|SessionMetadata)>\n([^<>]*)\n</\1>\s*")


def split_elements(prompt: str) -> tuple[str, str]:
    return ELEMENT.sub("", prompt), unescape("\n".join(text for _, text in ELEMENT.findall(prompt)))


async def test_attacks_stay_in_the_elements_of_the_users_prompt(busy: aftermind.Memory) -> None:
    async def tell(user: str, message: aftermind.Message) -> None:
        mem = memory_of(busy, user_id=user, **ALL)
        await mem.save_session_async(run_of(user, said(message.content), noted()))
        await mem.set_metadata_async({"said": message.content})

    async def ask(user: str, question: str) -> tuple[str, str]:
        async def is_learnt() -> bool:
            return await busy.summary(user_id=user, session_id="s1") is not None

        await wait_until(is_learnt, description="the session has a summary", timeout=PATIENCE_SECONDS)
        model, mem = Answers(), memory_of(busy, user_id=user, **ALL)
        await Agent(model, memory=mem, system_prompt="Be brief.", print=False).do_async(Task(question))
        earlier, _, prompt = model.texts(0)
        assert earlier == (await busy.history(user_id=user))[0].content
        return model.instructions(0), prompt

    await assert_attacks_stay_data(busy, ask, tell=tell, split=split_elements)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("upsonic.md", tmp_path)

    assert "I live in Oslo." in shown
