"""MCP's official conformance suite against the MCP server, over streamable HTTP.

    npm install --prefix FOLDER @modelcontextprotocol/conformance node@22
    make test-upstream SUITE=mcp FROM=FOLDER

The suite sends no API key, so the server is the one behind `aftermind mcp --http` without its check of keys.
"""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = "node_modules/@modelcontextprotocol/conformance"
# Those of any server. The others call tools, prompts and resources of the suite's own example server, or ask for
# capabilities that the server does not announce: log levels, completion, subscriptions.
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
LEFT_OUT = "of the suite's own example server, and of optional capabilities (log levels, completion, subscriptions)"


def run(folder: Path) -> dict[str, Any]:
    """The result of all scenarios, printed as they end."""
    node = folder / "node_modules/.bin/node"
    program = str(node) if node.exists() else shutil.which("node") or "node"
    passed = failed = 0
    with _served() as url, tempfile.TemporaryDirectory() as reports:
        for name in SCENARIOS:
            argv = [program, str(folder / PACKAGE / "dist/index.js"), "server", "--url", url, "--scenario", name]
            done = subprocess.run([*argv, "-o", reports], capture_output=True, text=True, check=False, timeout=120)
            found = re.search(r"Passed: (\d+)/(\d+)", done.stdout)
            good, all_ = (int(found[1]), int(found[2])) if found else (0, 1)
            passed, failed = passed + good, failed + all_ - good
            said = "" if found else done.stdout[-2_000:] + done.stderr[-2_000:]
            sys.stdout.write(f"{name}: {good} of {all_} {said}\n")
    return {
        "distribution": "@modelcontextprotocol/conformance",
        "version": json.loads((folder / PACKAGE / "package.json").read_text())["version"],
        "passed": passed,
        "total": passed + failed,
        "left_out": [LEFT_OUT],
        "note": "The official conformance suite, without API keys, which it cannot send.",
    }


@contextmanager
def _served() -> Iterator[str]:
    import uvicorn

    from aftermind import Memory
    from aftermind.integrations.mcp import make_server

    listening = socket.create_server(("127.0.0.1", 0))
    memory = Memory("inmemory")
    app = make_server(memory, user_id="alice").streamable_http_app(host="127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()
        asyncio.run(memory.close())
