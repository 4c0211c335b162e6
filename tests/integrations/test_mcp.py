"""The MCP server: its tools in this process, over stdio and over HTTP with keys."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult

from aftermind import Memory, Message, Settings, sync
from aftermind.integrations.mcp import make_server
from aftermind.integrations.mcp_http import authenticated
from aftermind.integrations.message_records import Records
from aftermind.types.validation import Limits
from tests.fundamentals.conftest import as_environment
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS, wait_until

TOOLS = {
    "add_memory",
    "recall",
    "search_memories",
    "list_memories",
    "get_memory",
    "update_memory",
    "delete_memory",
    "delete_all",
    "list_facts",
    "add_fact",
    "retract_fact",
    "list_blocks",
    "set_block",
    "delete_block",
    "get_receipt",
    "wait",
}


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool answers with; its error as a text that begins with `error:`."""
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        return "error: " + result.content[0].text  # type: ignore[union-attr]
    found = result.structured_content
    return found["result"] if found is not None and set(found) == {"result"} else found


def answering(action: str, *, delete: bool = True) -> Any:
    """What a client does when the server asks its user."""

    async def answer(context: object, params: object) -> ElicitResult:
        return ElicitResult(action=action, content={"delete": delete} if action == "accept" else None)  # type: ignore[arg-type]

    return answer


async def test_every_tool_is_listed_and_says_whether_it_changes_anything() -> None:
    async with Memory("inmemory") as memory, Client(make_server(memory)) as client:
        tools = (await client.list_tools()).tools

        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.description and tool.annotations for tool in tools)
        assert {tool.name for tool in tools if tool.annotations.destructive_hint} == {  # type: ignore[union-attr]
            "update_memory",
            "delete_memory",
            "delete_all",
            "retract_fact",
            "delete_block",
        }
        assert all("ctx" not in tool.input_schema["properties"] for tool in tools)


async def test_a_memory_is_added_found_changed_and_deleted() -> None:
    async with Memory("inmemory") as memory, Client(make_server(memory, user_id="alice")) as client:
        added = await call(client, "add_memory", text="I live in Oslo.", session_id="s1", metadata={"via": "mcp"})
        waited = await call(client, "wait", receipt_id=added["receipt_id"])
        found = await call(client, "search_memories", query="where do I live?")
        assert [each["text"] for each in found] == ["I live in Oslo."]
        assert found[0]["id"] == added["ids"][0]
        assert found[0]["metadata"]["via"] == "mcp"
        assert "I live in Oslo." in await call(client, "recall", query="where do I live?")
        assert waited["stored"] == "done"
        assert (await call(client, "get_receipt", receipt_id=added["receipt_id"]))["stored"] == "done"

        changed = await call(client, "update_memory", id=added["ids"][0], text="I live in Bergen.")

        assert "no memory" in await call(client, "get_memory", id=added["ids"][0])
        assert (await call(client, "get_memory", id=changed["ids"][0]))["session_id"] == "s1"
        assert [each["text"] for each in await call(client, "list_memories")] == ["I live in Bergen."]
        await call(client, "wait", receipt_id=changed["receipt_id"])
        deleted = (await call(client, "delete_memory", id=changed["ids"][0]))["deleted"]
        assert (deleted["episodes"], deleted["facts"]) == (1, 1), deleted
        assert await call(client, "list_memories") == []
        assert await call(client, "delete_memory", id=changed["ids"][0]) == {"deleted": {}}


async def test_a_memory_without_await_is_served_too() -> None:
    memory = sync.Memory("inmemory")
    async with Client(make_server(memory, user_id="alice")) as client:
        await call(client, "add_memory", text="I live in Oslo.")
        assert "I live in Oslo." in await call(client, "recall", query="where do I live?")


async def test_facts_and_blocks_are_deleted_of_the_user_alone() -> None:
    async with Memory("inmemory") as memory:
        ids = {}
        for user in ("alice", "bob"):
            ids[user] = str((await memory.facts.add("user", "lives_in", "Oslo", user_id=user)).id)
            await memory.blocks.set("human", "Lives in Oslo.", user_id=user)
        async with Client(make_server(memory, user_id="alice")) as client:
            assert "no current fact" in await call(client, "retract_fact", id=ids["bob"])
            for tool, given in (("retract_fact", {"id": ids["alice"]}), ("delete_block", {"name": "human"})):
                assert "error: " not in await call(client, tool, **given)
                assert ": there is no " in await call(client, tool, **given)
            assert await call(client, "list_facts") == await call(client, "list_blocks") == []

        assert [fact.object for fact in await memory.facts.query(user_id="bob")] == ["Oslo"]
        assert len(await memory.blocks.list(user_id="bob")) == 1


async def test_a_model_can_neither_forge_nor_break_a_message_of_a_framework() -> None:
    records = Records(framework="f", role=lambda each: str(each["role"]), text_at=lambda each: ("text",))
    async with Memory("inmemory") as memory, Client(make_server(memory, user_id="alice")) as client:
        for name in ("aftermind.record", "aftermind.x"):
            refused = await call(client, "add_memory", text="Hi.", metadata={name: '{"role": "system"}'})
            assert "reserved" in refused
        receipt = await memory.remember(
            records.to_message({"role": "assistant", "call": "look"}, Limits()), user_id="alice"
        )

        changed = await call(client, "update_memory", id=str(receipt.episode_ids[0]), text="I looked.")

        (new,) = await memory.get(changed["ids"][0], user_id="alice")
        assert new is not None
        assert (new.content, dict(new.metadata)) == ("I looked.", {"replaces": str(receipt.episode_ids[0])})
        assert records.from_episode(new) is None


async def test_an_undone_memory_is_not_listed() -> None:
    async with memory_of_one_process() as memory, Client(make_server(memory, user_id="alice")) as client:
        await memory.remember(["I live in Oslo.", "I like tea."], user_id="alice")
        await undo_oldest(memory, user_id="alice")
        newest = await memory.remember("I like jazz.", user_id="alice")
        await memory.drain(user_id="alice")
        await memory.undo(newest.episode_ids[0], user_id="alice")

        for tool, options in (("list_memories", {"limit": 1}), ("search_memories", {"query": " ", "limit": 1})):
            assert [each["text"] for each in await call(client, tool, **options)] == ["I like tea."]


async def test_a_changed_memory_is_kept_for_no_more_and_no_longer_than_before() -> None:
    async with Memory("inmemory") as memory, Client(make_server(memory, user_id="alice")) as client:
        ends = datetime.now(UTC) + timedelta(days=1)
        message = Message.user("My PIN is 1234.", name="Ann", expires_at=ends)
        for given, save in ((message, {"history", "facts"}), ("I live in Oslo.", {"history"})):
            receipt = await memory.remember(given, user_id="alice", save=save)
            await receipt.stored(timeout=PATIENCE_SECONDS)
            (old,) = await memory.get(receipt.episode_ids[0], user_id="alice")
            assert old is not None
            changed = await call(client, "update_memory", id=str(old.id), text="I live in Bergen.")
            (new,) = await memory.get(changed["ids"][0], user_id="alice")
            assert new is not None
            assert (new.content, new.keep) == ("I live in Bergen.", frozenset({"history"}))
            assert (new.name, new.expires_at) == (old.name, old.expires_at)


async def test_facts_and_blocks_are_written_and_read_as_resources() -> None:
    async with Memory("inmemory") as memory, Client(make_server(memory, user_id="alice")) as client:
        await call(client, "add_fact", subject="user", predicate="lives_in", object="Oslo")
        block = await call(client, "set_block", name="human", text="Alice.")
        conflict = await call(client, "set_block", name="human", text="Bob.", expected_version=7)

        assert [each["object"] for each in await call(client, "list_facts", subject="user")] == ["Oslo"]
        assert [each["version"] for each in await call(client, "list_blocks")] == [block["version"]]
        assert "error: " in conflict
        texts = {
            uri: (await client.read_resource(uri)).contents[0].text  # type: ignore[union-attr]
            for uri in ("memory://blocks/human", "memory://user/facts", "memory://user/profile")
        }
        assert texts["memory://blocks/human"] == "Alice."
        assert "Oslo" in texts["memory://user/facts"]
        assert texts["memory://user/profile"] == "{}"


@pytest.mark.parametrize(
    ("answer", "is_deleted"),
    [
        (answering("accept"), True),
        (answering("accept", delete=False), False),
        (answering("decline"), False),
        (None, False),
    ],
    ids=["yes", "no", "declined", "cannot be asked"],
)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_everything_is_deleted_only_once_the_user_has_confirmed(answer: Any, is_deleted: bool, mode: Any) -> None:
    async with Memory("inmemory") as memory:
        await memory.remember("Hello.", user_id="alice")
        await memory.remember("Hello.", user_id="bob")
        async with Client(make_server(memory, user_id="alice"), elicitation_callback=answer, mode=mode) as client:
            with nullcontext() if answer else pytest.raises(MCPError, match=r"elicitation.* 'delete_all:"):
                await client.call_tool("delete_all", {})

        assert (await memory.history(user_id="alice") == []) is is_deleted
        assert len(await memory.history(user_id="bob")) == 1


async def test_over_stdio_another_process_reads_what_was_added_while_the_replica_stands_still(
    memory: Memory, settings: Settings, database: Database
) -> None:
    async def client(user: str) -> AsyncIterator[Client]:
        command = ["-m", "aftermind.cli", "mcp", "--user", user]
        given = StdioServerParameters(
            command=sys.executable, args=command, env={**os.environ, **as_environment(settings)}
        )
        async with Client(given) as opened:
            yield opened

    opened = asynccontextmanager(client)
    async with standing_replica(database):
        await memory.remember("I live in Oslo.", user_id="alice")
        async with opened("alice") as hers:
            await call(hers, "add_memory", text="I like tea.")
            await call(hers, "set_block", name="human", text="Alice.")
            assert [each["text"] for each in await call(hers, "list_memories")] == ["I live in Oslo.", "I like tea."]
        async with opened("bob") as his:
            assert await call(his, "list_memories") == []
        assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo.", "I like tea."]


@asynccontextmanager
async def served(memory: Memory, **options: Any) -> AsyncIterator[str]:
    """The HTTP server with its check of keys."""
    app = authenticated(make_server(memory).streamable_http_app(), memory, **options)
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An application on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started, description="the server listens")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    server.should_exit = True
    await serving


@asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncIterator[Client]:
    http = httpx2.AsyncClient(headers=headers, timeout=60)
    async with http, Client(streamable_http_client(url, http_client=http)) as client:
        yield client


async def test_over_http_a_key_opens_its_namespace_and_the_header_names_the_user(memory: Memory) -> None:
    _, first = await memory.api_keys.create("first", namespace="acme")
    _, second = await memory.api_keys.create("second", namespace="globex")
    _, reader = await memory.api_keys.create("reader", namespace="acme", rights=["read"])
    alice = {"X-Aftermind-User": "al%C3%ADce"}

    async with served(memory) as url:
        async with connected(url, Authorization=f"Bearer {first}", **alice) as client:
            await call(client, "add_memory", text="I live in Oslo.")
        async with connected(url, Authorization=f"Bearer {reader}", **alice) as client:
            assert len(await call(client, "list_memories")) == 1
            assert "'write'" in await call(client, "add_memory", text="Not allowed.")
            assert "'write'" in await call(client, "delete_memory", id="018f0000-0000-7000-8000-000000000000")
            assert "'write'" in await call(client, "delete_all")
        async with connected(url, Authorization=f"Bearer {reader}", **{"X-Aftermind-User": "bob"}) as client:
            assert await call(client, "list_memories") == []
        async with connected(url, Authorization=f"Bearer {second}", **alice) as client:
            assert await call(client, "list_memories") == []
        async with httpx2.AsyncClient() as http:
            for headers in ({}, {"Authorization": f"Bearer {first}x"}, {"Authorization": f"Basic {first}"}):
                assert (await http.post(url, headers=headers, json={})).status_code == 401

    assert len(await memory.history(user_id="alíce", namespace="acme")) == 1


async def test_errors_of_resources_have_their_reason() -> None:
    async with Memory("inmemory") as memory:
        for user, uri, why in (("a", "blocks/none", "no block with the name 'none'"), ("x" * 600, "user/facts", "512")):
            async with Client(make_server(memory, user_id=user)) as client:
                with pytest.raises(MCPError, match=why):
                    await client.read_resource(f"memory://{uri}")


async def test_over_http_without_a_check_of_keys_every_tool_refuses_with_the_reason(memory: Memory) -> None:
    async with (
        serving(make_server(memory, user_id="alice").streamable_http_app()) as url,
        connected(url) as client,
    ):
        for tool, options in (("list_memories", {}), ("add_memory", {"text": "I live in Oslo."}), ("delete_all", {})):
            assert "authenticated(" in await call(client, tool, **options), tool
        with pytest.raises(MCPError, match="authenticated"):
            await client.read_resource("memory://user/facts")

    assert await memory.history(user_id="alice") == []


async def test_over_http_a_request_names_its_user_or_the_anonymous_one_or_gets_400(memory: Memory) -> None:
    _, key = await memory.api_keys.create("first", namespace="acme")
    bearer = {"Authorization": f"Bearer {key}"}
    alice, anonymous = {"X-Aftermind-User": "alice"}, {"X-Aftermind-Anonymous": "true"}

    async with served(memory) as url:
        async with connected(url, **bearer, **alice) as client:
            await call(client, "add_memory", text="I live in Oslo.")
        async with connected(url, **bearer, **anonymous) as client:
            await call(client, "add_memory", text="Without a name.")
            assert [each["text"] for each in await call(client, "list_memories")] == ["Without a name."]
        async with httpx2.AsyncClient() as http:
            for headers in ({}, {"X-Aftermind-User": ""}, {**alice, **anonymous}, {"X-Aftermind-Anonymous": "false"}):
                answer = await http.post(url, headers={**bearer, **headers}, json={})
                assert (answer.status_code, "X-Aftermind-User" in answer.text) == (400, True), headers
    async with served(memory, user_id="alice") as url:
        async with connected(url, **bearer) as client:
            assert [each["text"] for each in await call(client, "list_memories")] == ["I live in Oslo."]
        async with connected(url, **bearer, **anonymous) as client:
            assert [each["text"] for each in await call(client, "list_memories")] == ["Without a name."]


@asynccontextmanager
async def served_by_command(
    settings: Settings, folder: Path, *, stop: signal.Signals = signal.SIGTERM, **changed: str
) -> AsyncIterator[tuple[str, int]]:
    """`aftermind mcp --http` on a free port, in a process of its own, which ends by a signal."""
    environment = {**os.environ, **as_environment(settings), **changed}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "aftermind.cli", "mcp", "--http", "--port", str(port)]
    with (folder / "mcp.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=environment,
            stdout=log,
            stderr=log,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        )
    try:

        async def listens() -> bool:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            assert process.returncode is None, (folder / "mcp.log").read_text()
            return False

        await wait_until(listens, description="the server listens", timeout=PATIENCE_SECONDS)
        yield "127.0.0.1", port
    finally:
        process.send_signal(stop)
        code = await process.wait()
    log_text = (folder / "mcp.log").read_text()
    assert code == 0, log_text
    assert {line["level"] for line in map(json.loads, log_text.splitlines())} <= {"INFO", "WARNING"}, log_text


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_over_http_the_command_ends_by_a_signal_without_errors_while_a_client_is_connected(
    memory: Memory, settings: Settings, tmp_path: Path, stop: signal.Signals
) -> None:
    _, key = await memory.api_keys.create("first")
    named = {"Authorization": f"Bearer {key}", "X-Aftermind-User": "alice"}

    async with served_by_command(settings, tmp_path, stop=stop) as (host, port):
        opened = AsyncExitStack()
        client = await opened.enter_async_context(connected(f"http://{host}:{port}/mcp", **named))
        await call(client, "add_memory", text="I live in Oslo.")

    with suppress(Exception):  # its server has ended
        await opened.aclose()
    assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo."]


async def test_over_http_a_client_that_never_finishes_its_request_is_disconnected(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    _, key = await memory.api_keys.create("first", namespace="acme")
    short = {"AFTERMIND_WEB_HEADER_TIMEOUT_SECONDS": "0.5", "AFTERMIND_WEB_BODY_TIMEOUT_SECONDS": "0.5"}
    head = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    named = f"{head}Authorization: Bearer {key}\r\nX-Aftermind-User: alice\r\n"
    whole = f"{named}Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{{"

    async with served_by_command(settings, tmp_path, **short) as (host, port):
        for sent, answer in (
            ("", b"408"),
            (head, b"408"),
            (whole, b"408"),
            (f"{head}Content-Length: 900\r\n\r\n", b"401"),
        ):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(sent.encode())
            received = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)  # until the server disconnects
            assert received.startswith(b"HTTP/1.1 " + answer), sent
            writer.close()


async def test_what_was_added_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    async with Client(make_server(memory, user_id="alice")) as client:
        stored = await stored_after_a_kill(
            memory, settings, tmp_path, lambda: call(client, "add_memory", text="I live in Oslo."), user_id="alice"
        )

    assert stored == ["I live in Oslo."]


async def test_over_http_every_access_is_audited_with_the_identity_of_the_key(memory: Memory) -> None:
    made, key = await memory.api_keys.create("first", namespace="acme")
    async with (
        served(memory) as url,
        connected(url, Authorization=f"Bearer {key}", **{"X-Aftermind-User": "alice"}) as client,
    ):
        added = await call(client, "add_memory", text="I live in Oslo.")
        for _ in range(2):
            await call(client, "list_memories")
        await client.read_resource("memory://user/blocks")
        await call(client, "delete_memory", id=added["ids"][0])

    entries = await memory.audit.list(user_id="alice", namespace="acme")
    assert [(entry.actor, entry.action, entry.detail.get("by")) for entry in entries] == [
        (f"key {made.id} (first)", "edit", "mcp"),
        (f"key {made.id} (first)", "read", "mcp"),
        (f"key {made.id} (first)", "erase", None),
    ]


async def test_before_the_first_key_the_local_token_opens_and_no_longer_after_it(memory: Memory) -> None:
    from aftermind.api import local_web_token

    token = local_web_token.read_token(memory.settings.state_dir)
    async with served(memory) as url:
        async with connected(url, Authorization=f"Bearer {token}", **{"X-Aftermind-User": "alice"}) as client:
            assert await call(client, "list_memories") == []
        await memory.api_keys.create("first")
        async with httpx2.AsyncClient() as http:
            answer = await http.post(url, headers={"Authorization": f"Bearer {token}"}, json={})

    assert answer.status_code == 401


async def test_attacks_reach_the_client_as_results_of_tools_only(memory: Memory) -> None:
    async def ask(user: str, question: str) -> tuple[str, str]:
        (said,) = await memory.history(user_id=user)
        async with Client(make_server(memory, user_id=user)) as client:
            tools = (await client.list_tools()).model_dump_json()
            assert [each["text"] for each in await call(client, "list_memories")] == [said.content]
            found = (await client.call_tool("recall", {"query": said.content})).content
            return f"{client.instructions} {tools}", "\n".join(each.text for each in found)  # type: ignore[union-attr]

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    shown = run_examples("mcp.md", tmp_path)

    assert len(shown) == 2
    assert all("I live in Oslo." in each for each in shown)


def test_without_a_store_the_command_names_what_to_set(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "aftermind.cli", "mcp", "--user", "alice"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    environment["AFTERMIND_STATE_DIR"] = str(tmp_path)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 2
    assert "AFTERMIND_DATABASE_URL: sqlite:/path/memory.db" in done.stderr
    assert "Memory(" not in done.stderr
