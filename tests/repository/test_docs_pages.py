"""What the pages under docs/ name exists, their Python runs, and their YAML is YAML."""

import json
import os
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import aftermind
from aftermind.cli import FAMILIES
from aftermind.settings import Settings
from aftermind.sync import Memory
from tests.repository.test_monitoring_files import EXPORTED
from tests.support.fork_server import run_module

ROOT = Path(__file__).parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
RUN_HERE = ("docs/guides/agents.md", "docs/guides/watching.md")  # the quick start has a test of its own, on a stack
STRICT = {"PYTHONWARNINGS": "error"}
OURS_ELSEWHERE = {"AFTERMIND_X"}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGES[page], flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_that_a_page_names_exist(page: str) -> None:
    known = {f"AFTERMIND_{name.upper()}" for name in Settings.model_fields}
    named = {name.removesuffix("_FILE") for name in re.findall(r"\bAFTERMIND_[A-Z_]*[A-Z]\b(?![_*…])", PAGES[page])}

    assert {name for name in named if name not in known and f"{name}_FILE" not in known} <= OURS_ELSEWHERE


@pytest.mark.parametrize("page", PAGES)
def test_the_metrics_that_a_page_names_are_exported(page: str) -> None:
    logins = ("worker_login", "migrator_login", "replicator_login")
    modules = {f"aftermind_{name}" for name in ("workers", "tasks", "app", "relay", *logins)}
    families = EXPORTED | {re.sub(r"_(bucket|count|sum)$", "", name) for name in EXPORTED}

    assert set(re.findall(r"\baftermind_[a-z_]+\b", PAGES[page])) - modules <= families


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/.-]*)`", PAGES[page])

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_commands_that_the_pages_name_exist() -> None:
    named = {
        name
        for page in PAGES
        for block in blocks(page, "sh")
        for name in re.findall(r"^(?:\$ )?aftermind ([a-z-]+)", block, flags=re.MULTILINE)
    }

    assert {"up", "doctor", "dead-letters", "replay"} <= named
    assert named <= {command for commands in FAMILIES.values() for command in commands}


@pytest.mark.parametrize(
    ("page", "number"), [(page, n) for page in RUN_HERE for n in range(len(blocks(page, "python")))]
)
def test_the_python_of_a_guide_runs(page: str, number: int, tmp_path: Path) -> None:
    code = blocks(page, "python")[number]
    if re.search(r"^(await|async with|async for)\b", code, flags=re.MULTILINE):
        code = f"import asyncio\nasync def main():\n{textwrap.indent(code, '    ')}\nasyncio.run(main())"

    (tmp_path / "guide.py").write_text(code)
    done = run_module(["guide"], env={**os.environ, **STRICT}, cwd=tmp_path, timeout=180)

    assert done.returncode == 0, done.stderr


async def test_documents_of_the_guide_are_recalled_with_the_users_memory_and_replaced() -> None:
    (code,) = [code for code in blocks("docs/guides/conversations.md", "python") if "replace_document" in code]
    guide: dict[str, Any] = {}
    exec(code, guide)
    handbook = "# Handbook\n\n## Expenses\n\nMeals are refunded up to {} euros a day. I live in Berlin.\n"
    question = "How much is refunded for meals?"

    async with aftermind.Memory("inmemory") as memory:
        await memory.remember("I like long meals.", user_id="ann")
        for euros in (30, 40):
            await guide["replace_document"](memory, "handbook.md", handbook.format(euros))
            await memory.drain()
        found = await guide["memories"](memory, question, "ann")
        facts = await memory.facts.query(user_id=guide["LIBRARY"])

    assert "I like long meals." in found
    assert "40 euros" in found
    assert "30 euros" not in found
    assert facts == []


def test_the_script_for_memories_of_mem0_keeps_their_metadata_and_can_be_repeated(tmp_path: Path) -> None:
    (script,) = [code for code in blocks("docs/guides/migrating.md", "python") if "mem0.json" in code]
    exported = [
        {"id": "1", "memory": "User lives in Oslo", "run_id": "r1", "metadata": {"category": "home"}},
        {"id": "2", "memory": "User likes tea", "metadata": None},
    ]
    common = {"user_id": "alice", "created_at": "2024-05-01T10:00:00-07:00"}
    (tmp_path / "mem0.json").write_text(json.dumps({"results": [{**common, **each} for each in exported]}))
    environment = {**os.environ, **STRICT, "AFTERMIND_DATABASE_URL": f"sqlite:{tmp_path / 'memory.db'}"}

    (tmp_path / "script.py").write_text(script)
    for _ in range(2):
        done = run_module(["script"], cwd=tmp_path, env=environment, timeout=180)
        assert done.returncode == 0, done.stderr

    with Memory(environment["AFTERMIND_DATABASE_URL"]) as memory:
        (home,) = memory.search(user_id="alice", metadata={"category": "home"})
        assert (home.content, home.scope.session_id) == ("User lives in Oslo", "r1")
        assert len(memory.history(user_id="alice")) == 2


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_the_yaml_of_a_page_can_be_read(page: str) -> None:
    for block in blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            if "scrape_configs" in document:  # of Prometheus; the others are of Kubernetes
                assert all({"job_name", "static_configs"} <= set(each) for each in document["scrape_configs"])
            else:
                assert {"apiVersion", "kind", "metadata"} <= set(document), document


def test_nothing_is_fetched_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    assert config["theme"]["font"] is False
    assert not [page for page, text in PAGES.items() if re.search(r"!\[[^]]*\]\(https?:", text)]


def test_the_reference_has_every_public_name() -> None:
    listed = set(re.findall(r"^::: (\S+)$", PAGES["docs/reference/python.md"], flags=re.MULTILINE))
    listed |= set(re.findall(r"^::: (\S+)$", PAGES["docs/reference/errors.md"], flags=re.MULTILINE))
    modules = [import_module(each) for each in listed if _is_module(each)]
    named = {each.rpartition(".")[2] for each in listed} | {name for module in modules for name in vars(module)}

    assert set(aftermind.__all__) - named == set()


def _is_module(name: str) -> bool:
    """Whether a name is that of a module."""
    return name.rpartition(".")[2].islower() and (ROOT / "app" / f"{name.replace('.', '/')}.py").exists()
