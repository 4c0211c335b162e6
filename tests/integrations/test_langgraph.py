"""LangGraph and LangChain: the store, the chat history and the retriever, in the frameworks' own environment."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import GetOp, PutOp, SearchOp
from pydantic import Field

import aftermind.sync
from aftermind import Memory, Role, Settings, errors
from aftermind.integrations.langchain import AftermindChatMessageHistory, AftermindRetriever
from aftermind.integrations.langgraph import AftermindStore
from tests.attacks.corpus import attacks
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import examples, run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database
from tests.support.waiting import wait_until

VECTORS = {"tea": [1.0, 0.0], "coffee": [0.0, 1.0], "drinks": [0.7, 0.7]}


async def embed(texts: list[str]) -> list[list[float]]:
    return [VECTORS.get(text, [0.1, 0.1]) for text in texts]


@pytest.fixture
def store(memory: Memory) -> AftermindStore:
    return AftermindStore(memory, index={"dims": 2, "embed": embed, "fields": ["text", "more[*]"]})  # type: ignore[arg-type]


async def test_a_put_is_read_by_another_process_while_the_replica_stands_still(
    memory: Memory, settings: Settings, database: Database
) -> None:
    store = AftermindStore(memory)
    await store.aput(("notes", "a"), "k", {"text": "before"})
    code = """
        from aftermind.integrations.langgraph import AftermindStore
        store = AftermindStore(memory)
        item = await store.aget(("notes", "a"), "k")
        found = await store.asearch(("notes",))
        return [item.value, len(found), await store.alist_namespaces()]
    """
    async with standing_replica(database):
        await store.aput(("notes", "a"), "k", {"text": "after"})
        await store.aput(("notes", "b"), "k", {"text": "new"})
        seen = await read_elsewhere(settings, code)

    assert seen == [{"text": "after"}, 2, [["notes", "a"], ["notes", "b"]]]


async def test_a_query_ranks_by_the_fields_that_are_indexed(store: AftermindStore) -> None:
    await store.aput(("drinks",), "tea", {"text": "tea"})
    await store.aput(("drinks",), "coffee", {"text": "coffee", "rank": 2})
    await store.aput(("drinks",), "many", {"more": ["tea", "coffee"], "rank": 3})
    await store.aput(("drinks",), "other", {"text": "x", "said": "coffee"}, index=["said"])
    await store.aput(("drinks",), "hidden", {"text": "coffee"}, index=False)

    found = await store.asearch(("drinks",), query="coffee")
    filtered = await store.asearch(("drinks",), query="coffee", filter={"rank": {"$gte": 2}}, limit=1, offset=1)

    assert {each.key for each in found[:3]} == {"coffee", "many", "other"}
    assert [each.key for each in found[3:]] == ["tea", "hidden"]
    assert [each.score for each in found[:4]] == pytest.approx([1.0, 1.0, 1.0, 0.0])
    assert found[4].score is None
    assert len(filtered) == 1
    assert {each.score for each in await store.asearch(("drinks",))} == {None}


async def test_a_batch_is_atomic_and_reads_what_was_there_before_it(store: AftermindStore) -> None:
    await store.aput(("a",), "1", {"n": 1})

    results = await store.abatch([PutOp(("a",), "1", {"n": 2}), GetOp(("a",), "1"), SearchOp(("a",))])
    with pytest.raises(errors.InvalidItem):
        await store.abatch([PutOp(("a",), "1", {"n": 3}), PutOp(("a",), "", {"n": 3})])

    assert results[1].value == {"n": 1}  # type: ignore[union-attr]
    assert results[2][0].value == {"n": 1}  # type: ignore[index]
    assert (await store.aget(("a",), "1")).value == {"n": 2}  # type: ignore[union-attr]


async def test_a_time_to_live_ends_and_a_read_begins_it_again(memory: Memory) -> None:
    store = AftermindStore(memory, ttl={"default_ttl": 60.0, "refresh_on_read": True})
    await store.aput(("a",), "short", {}, ttl=0.000_01)
    await store.aput(("a",), "long", {})
    (before,) = await memory.items.get((("a",), "long"), renew=False)

    await store.aget(("a",), "long", refresh_ttl=False)
    (still,) = await memory.items.get((("a",), "long"), renew=False)
    await store.asearch(("a",))
    (after,) = await memory.items.get((("a",), "long"), renew=False)

    async def ended() -> bool:
        return await store.aget(("a",), "short", refresh_ttl=False) is None

    await wait_until(ended, description="the short one has expired")
    assert before is not None
    assert still is not None
    assert after is not None
    assert before.expires_at is not None
    assert after.expires_at is not None
    assert still.expires_at == before.expires_at < after.expires_at
    assert [each.key for each in await store.asearch(("a",))] == ["long"]


async def test_with_a_user_label_nobody_reaches_anothers_items(memory: Memory) -> None:
    store = AftermindStore(memory, user_label=1)
    for user in ("alice", "bob"):
        await store.aput(("memories", user), "k", {"of": user})

    for reach in (store.asearch(("memories",)), store.alist_namespaces(), store.aget(("memories",), "k")):
        with pytest.raises(errors.InvalidScope):
            await reach
    await memory.forget(user_id="alice")

    assert await store.aget(("memories", "alice"), "k") is None
    assert [each.value for each in await store.asearch(("memories", "bob"))] == [{"of": "bob"}]
    assert await store.alist_namespaces(prefix=("memories", "bob")) == [("memories", "bob")]


async def test_namespaces_are_listed_by_prefix_suffix_wildcard_and_depth(store: AftermindStore) -> None:
    for namespace in (("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("b", "c")):
        await store.aput(namespace, "k", {})

    assert await store.alist_namespaces(prefix=("a", "b")) == [("a", "b", "c"), ("a", "b", "d")]
    assert await store.alist_namespaces(prefix=("a", "*"), suffix=("c",)) == [("a", "b", "c"), ("a", "x", "c")]
    assert await store.alist_namespaces(max_depth=2, limit=2, offset=1) == [("a", "x"), ("b", "c")]


def test_a_compiled_graph_uses_the_store_without_a_loop() -> None:
    with aftermind.sync.Memory("inmemory") as memory:
        store = AftermindStore(memory)

        def node(state: dict[str, Any], *, store: Any) -> dict[str, Any]:
            store.put(("seen",), "k", {"said": state["said"]})
            return {"said": store.get(("seen",), "k").value["said"] + "!"}

        node.__annotations__["store"] = "BaseStore"
        graph = StateGraph(dict)
        graph.add_node("node", lambda state: node(state, store=store))
        graph.add_edge(START, "node")

        assert graph.compile(store=store).invoke({"said": "hello"}) == {"said": "hello!"}


async def test_a_blocking_call_in_a_running_loop_is_refused(store: AftermindStore) -> None:
    history = AftermindChatMessageHistory(store.memory, "s", user_id="alice")
    retriever = AftermindRetriever(memory=store.memory, user_id="alice")
    for call, instead in (
        (lambda: store.get(("a",), "k"), "aget"),
        (lambda: history.messages, r"await history\.aget_messages\("),
        (lambda: history.add_user_message("Hello."), r"await history\.aadd_messages\("),
        (history.clear, r"await history\.aclear\("),
        (lambda: retriever.invoke("Hello?"), r"await retriever\.ainvoke\("),
    ):
        with pytest.raises(errors.InvalidInput, match=f"event loop.*{instead}"):
            call()


ENDS_WITHOUT_CLOSE = """
import sys
from aftermind import Memory
from aftermind.integrations.langchain import AftermindChatMessageHistory
from aftermind.integrations.langgraph import AftermindStore

memory = Memory(sys.argv[1])
history = AftermindChatMessageHistory(memory, "s", user_id="alice")
history.add_user_message("I live in Bern.")
AftermindStore(memory, user_id="alice").put(("a",), "b", {"c": 1})
print(history.messages[0].content)
"""


def test_a_process_that_closes_no_memory_ends_without_errors_and_loses_nothing(tmp_path: Path) -> None:
    url, said = f"sqlite:{tmp_path}/memory.db", []
    for _ in range(5):  # the exit comes at another point of the background work each time
        done = subprocess.run(
            [sys.executable, "-c", ENDS_WITHOUT_CLOSE, url], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "I live in Bern.\n", "")
        said.append(done.stdout.strip())

    with aftermind.sync.Memory(url) as memory:
        assert [each.content for each in memory.history(user_id="alice")] == said


MESSAGES = [
    SystemMessage("Be brief.", id="1"),
    HumanMessage(
        [
            {"type": "text", "text": "What is in it?"},
            {"type": "image_url", "image_url": {"url": "https://x.example/1.png"}},
        ]
    ),
    AIMessage("", tool_calls=[{"name": "look", "args": {"deep": {"er": [1, {"x": None}]}}, "id": "c1"}]),
    ToolMessage("A cat.", tool_call_id="c1", name="look", artifact={"size": "x" * 20_000}),
    AIMessage(
        "A cat\U0001f408.",
        response_metadata={"model": "m"},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
]


async def test_a_chat_history_comes_back_as_it_was_in_another_process(
    memory: Memory, settings: Settings, database: Database
) -> None:
    history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
    async with standing_replica(database):
        await history.aadd_messages(MESSAGES[:2])
        await history.aadd_messages(MESSAGES[2:])
        code = """
            from aftermind.integrations.langchain import AftermindChatMessageHistory
            from langchain_core.messages import messages_to_dict
            history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
            return messages_to_dict(await history.aget_messages())
        """
        elsewhere = await read_elsewhere(settings, code)

    assert await history.aget_messages() == MESSAGES
    assert [each["data"]["content"] for each in elsewhere] == [each.content for each in MESSAGES]  # type: ignore[attr-defined]
    newest = AftermindChatMessageHistory(memory, "s1", user_id="alice", limit=3)
    assert await newest.aget_messages() == MESSAGES[-3:]
    assert await AftermindChatMessageHistory(memory, "s1", user_id="bob").aget_messages() == []


async def test_a_streamed_answer_is_one_of_the_agent(memory: Memory) -> None:
    history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
    model = GenericFakeChatModel(messages=iter([AIMessage("You live in Oslo.")]))
    chunks = [chunk async for chunk in model.astream("Where do I live?")]
    whole = sum(chunks[1:], start=chunks[0])
    assert isinstance(whole, AIMessageChunk)

    await history.aadd_messages([HumanMessage("Where do I live?"), whole])

    stored = await memory.history(user_id="alice", session_id="s1")
    assert [each.role.value for each in stored] == ["user", "assistant"]
    found = (await history.aget_messages())[-1]
    assert (type(found), found.content) == (AIMessage, "You live in Oslo.")


async def test_messages_of_other_kinds_have_the_role_they_name_or_are_refused(memory: Memory) -> None:
    history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
    named = ChatMessage("Noted.", role="assistant")
    await history.aadd_messages([named])

    for refused in (RemoveMessage(id="1"), ChatMessage("Once.", role="narrator")):
        with pytest.raises(errors.InvalidMessage):
            await history.aadd_messages([HumanMessage("Hello."), refused])

    assert [each.role.value for each in await memory.history(user_id="alice")] == ["assistant"]
    assert await history.aget_messages() == [named]


async def test_the_newest_messages_do_not_begin_with_a_result_without_its_call(memory: Memory) -> None:
    call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])
    given = [HumanMessage("Where?"), call, ToolMessage("Oslo", tool_call_id="1"), AIMessage("In Oslo.")]
    await AftermindChatMessageHistory(memory, "s1", user_id="alice").aadd_messages(given)

    for limit, types in ((1, ["ai"]), (2, ["ai"]), (3, ["ai", "tool", "ai"]), (None, ["human", "ai", "tool", "ai"])):
        history = AftermindChatMessageHistory(memory, "s1", user_id="alice", limit=limit)
        assert [each.type for each in await history.aget_messages()] == types


async def test_a_chat_history_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
    given = [HumanMessage("I live in Oslo."), AIMessage("Noted.")]

    stored = await stored_after_a_kill(
        memory, settings, tmp_path, lambda: history.aadd_messages(given), user_id="alice"
    )

    assert stored == [each.content for each in given]


async def test_a_cleared_history_is_forgotten_and_others_stay(memory: Memory) -> None:
    first, second = (AftermindChatMessageHistory(memory, name, user_id="alice") for name in ("s1", "s2"))
    for history in (first, second):
        await history.aadd_messages([HumanMessage("I live in Oslo.")])

    await first.aclear()
    await first.aadd_messages([HumanMessage("New.")])

    assert await first.aget_messages() == [HumanMessage("New.")]
    assert await second.aget_messages() == [HumanMessage("I live in Oslo.")]


async def test_an_undone_message_is_not_in_the_history() -> None:
    async with memory_of_one_process() as memory:
        history = AftermindChatMessageHistory(memory, "s1", user_id="alice")
        await history.aadd_messages([HumanMessage("I live in Oslo."), HumanMessage("New.")])
        await undo_oldest(memory, user_id="alice")

        assert await history.aget_messages() == [HumanMessage("New.")]


async def test_messages_that_others_remembered_in_the_session_are_read_too(memory: Memory) -> None:
    await memory.remember("Hello.", user_id="alice", session_id="s1")

    history = AftermindChatMessageHistory(memory, "s1", user_id="alice")

    assert await history.aget_messages() == [HumanMessage("Hello.")]
    block = await memory.recall("who said hello?", user_id="alice")
    assert "Hello." in block.text


class Sees(BaseChatModel):
    """A model that answers "Fine.", and keeps what it was sent."""

    seen: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "sees"

    def _generate(self, messages: list[Any], *args: Any, **options: Any) -> ChatResult:
        self.seen.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Fine."))])


async def test_attacks_reach_the_model_as_data_only(memory: Memory) -> None:
    documented: dict[str, Any] = {}
    exec(examples("langgraph.md")[2].partition("async def main")[0], documented)

    async def ask(user: str, question: str) -> tuple[str, str]:
        model = Sees()

        async def answer(state: MessagesState) -> MessagesState:
            asked = await documented["prompt"](memory, state["messages"][-1].content, user_id=user, mode="recency")
            return {"messages": [await model.ainvoke(asked)]}

        graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
        await graph.ainvoke({"messages": [HumanMessage(question)]})
        (((system, *others)),) = model.seen
        assert [each.type for each in (system, *others)] == ["system", "human"]
        return system.content, others[0].content

    await assert_attacks_stay_data(memory, ask)


async def test_attacks_of_a_chat_history_are_messages_of_their_roles(memory: Memory) -> None:
    given = [(ROLES[each.role](each.text)) for each in attacks()]
    await AftermindChatMessageHistory(memory, "s1", user_id="alice").aadd_messages(given)
    model = Sees()
    prompt = ChatPromptTemplate([("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{question}")])
    chain = RunnableWithMessageHistory(
        prompt | model,
        lambda session_id: AftermindChatMessageHistory(memory, session_id, user_id="alice"),
        input_messages_key="question",
        history_messages_key="history",
    )

    await chain.ainvoke({"question": "Well?"}, {"configurable": {"session_id": "s1"}})

    ((system, *history, question),) = model.seen
    assert (system.content, question.content) == ("Be brief.", "Well?")
    assert history == given


ROLES = {
    Role.USER: HumanMessage,
    Role.ASSISTANT: AIMessage,
    Role.TOOL: lambda text: ToolMessage(text, tool_call_id="c1"),
    Role.SYSTEM: SystemMessage,
}


class TestRetriever(RetrieversIntegrationTests):
    """LangChain's own tests of retrievers."""

    @pytest.fixture(autouse=True)
    def filled(self, settings: Settings) -> Any:
        with aftermind.sync.Memory(settings=settings) as memory:
            for text in ("I live in Oslo.", "Oslo is cold.", "Oslo has a harbour.", "I like tea in Oslo."):
                memory.remember(text, user_id="alice")
            self.params = {"memory": memory, "user_id": "alice"}
            yield

    @property
    def retriever_constructor(self) -> type[AftermindRetriever]:
        return AftermindRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.params

    @property
    def retriever_query_example(self) -> str:
        return "Oslo"

    def test_documents_have_their_source(self, retriever: AftermindRetriever) -> None:
        found = retriever.invoke("where is the harbour?")[0]

        assert found.page_content == "Oslo has a harbour."
        assert found.metadata["role"] == "user"
        json.dumps(found.metadata)


async def test_concurrent_puts_of_one_key_leave_one_of_them_whole(store: AftermindStore) -> None:
    await asyncio.gather(*(store.aput(("a",), "k", {"n": n, "same": n}) for n in range(20)))

    item = await store.aget(("a",), "k")

    assert item is not None
    assert item.value["n"] == item.value["same"]


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    stored, recalled, prompt = run_examples("langgraph.md", tmp_path)

    assert "tea" in stored
    assert "I live in Oslo." in recalled
    assert "<memory" in prompt
