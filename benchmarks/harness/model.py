"""The model server of a run: it finds the facts that the numbered turns of its prompt state, when it is well.

A process of its own (`python -m benchmarks.harness.model`); the runner switches its faults on and off over HTTP. Until
it is mended it gives no usable answer about a poisoned turn, however often it is asked: such jobs become dead letters.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aftermind.stack.run_without_root import dying_with_parent
from benchmarks.harness import messages
from tests.support.scripted_openai import Server

# Shares of calls while the faults are on; the rest is answered. Half of the calls fail in one way or another.
FAULTS = {"429": 0.12, "500": 0.12, "garbage": 0.1, "schema": 0.1, "silence": 0.06}
SILENCE = 4.0  # seconds; the deadline of a call is 3


class NumberedModel(Server):
    """Answers by the wording of numbered turns."""

    def __init__(self) -> None:
        super().__init__()
        self.script.silence_seconds = SILENCE
        self._mended = False
        self.app.routes.insert(0, Route("/mend", self.mend, methods=["POST"]))  # before the route of any path

    async def mend(self, request: Request) -> Response:
        """From now on the poisoned turns are answered too, and no fault is drawn."""
        self._mended, self.script.faults = True, {}
        return JSONResponse({})

    def _answer(self, schema: str | None, turns: list[tuple[int, str, str]], body: Mapping[str, Any]) -> dict[str, Any]:
        if schema == "AnsweredExtraction" and not self._mended and any(messages.is_poisoned(turn[2]) for turn in turns):
            return {"content": '{"claims": "the oracle is silent"}'}
        return super()._answer(schema, turns, body)

    def _extraction(self, turns: list[tuple[int, str, str]]) -> dict[str, Any]:
        claims = [
            {
                "operation": "assert",
                "subject": "user",
                "predicate": "collects",
                "object": name,
                "cardinality": "multi",
                "valid_from": None,
                "valid_to": None,
                "confidence": 0.9,
                "sources": [number],
                "quote": f"I collect {name}",
            }
            for number, _, text in turns
            for name in messages.objects_in(text)
        ]
        return {"claims": claims, "reason_empty": None if claims else "no fact is stated in these turns"}


class ModelServer:
    """The runner's hand on the server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self) -> Mapping[str, str]:
        """As environment of agents and workers."""
        return {
            "OPENAI_API_KEY": "scripted",
            "OPENAI_BASE_URL": self.url,
            "AFTERMIND_EMBEDDER": "openai:scripted",
            "AFTERMIND_EXTRACTOR": "openai:scripted",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
        }

    async def misbehave(self, seconds: float) -> None:
        """Faults on for so long."""
        await self._post("script", {"faults": FAULTS})
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._post("script", {"faults": {}})

    async def slow_down(self, seconds: float) -> None:
        """Every answer takes so much longer."""
        await self._post("script", {"latency_seconds": seconds})

    async def mend(self) -> None:
        """Well from now on."""
        await self._post("mend", {})

    async def calls(self) -> dict[str, Any]:
        """What it was asked: see `tests.support.scripted_openai.Calls`."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(self.url.replace("/v1", "/log"))
            return dict(answer.json())

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        async with httpx.AsyncClient() as client:
            (await client.post(self.url.replace("/v1", f"/{path}"), json=body)).raise_for_status()


@asynccontextmanager
async def model_server(*, root: Path, env: Mapping[str, str]) -> AsyncIterator[ModelServer]:
    """A running server for the block."""
    process = _start(root, env)
    assert process.stdout is not None
    try:
        yield ModelServer((await asyncio.to_thread(process.stdout.readline)).strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _start(root: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    argv = [*dying_with_parent("KILL"), sys.executable, "-m", "benchmarks.harness.model"]
    return subprocess.Popen(argv, cwd=root, env=dict(env), stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Serve until killed; the address is the first line printed."""
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/v1\n")
    sys.stdout.flush()
    config = uvicorn.Config(NumberedModel().app, log_level="critical", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
