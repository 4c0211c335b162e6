"""Run a framework's own tests with our implementation: `python run.py SUITE FOLDER`, in the integration's environment.

FOLDER is a checkout of the framework's repository; for `mcp` see `conformance.py`. The result goes into `results.json`,
of which `docs/generate.py` makes a table.
"""

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import conformance

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Which tests of a repository run, and which of them do not, with the reason. `note` says what the shim does."""

    distribution: str
    folder: str
    files: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)  # by a part of the test's name
    note: str = ""
    has_conftest: bool = True  # False: its conftest needs packages that no test of these files uses


SQLITE = "of SQLite's connections, files and damaged rows"
LINKS = "of folders and links on disk"
OWN_STORAGES = (
    "of what the protocol of a storage leaves to Strands' own: namespaces, strategies of a search, paths as keys"
)
SUITES = {
    "anthropic": Suite(
        distribution="anthropic",
        folder=".",
        files=("tests/lib/tools/memory_tools/test_filesystem.py",),
        has_conftest=False,
        left_out={
            **dict.fromkeys(("mkdir", "symlink", "crlf"), LINKS),
            "too_many_lines": "of a file of a million lines: one of Aftermind's has at most 64 KiB",
        },
    ),
    "crewai": Suite(
        distribution="crewai", folder=".", files=("tests/memory/test_unified_memory.py",), has_conftest=False
    ),
    "strands": Suite(
        distribution="strands-agents",
        folder=".",
        files=(
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/session/test_snapshot_session_manager.py",
        ),
        left_out={
            **dict.fromkeys(("namespace", "clear", "strategy", "normalization", "rejects"), OWN_STORAGES),
            **dict.fromkeys(
                ("interrupted_graph", "interrupted_swarm"), "with a fixture that needs doubles of AWS (moto)"
            ),
        },
        has_conftest=False,
    ),
    "upsonic": Suite(
        distribution="upsonic",
        folder=".",
        files=("tests/smoke_tests/memory/test_memory_save_load_flags.py",),
        left_out={
            **dict.fromkeys(("user_memory_created", "user_memory_save"), "of a private attribute"),
            **dict.fromkeys(
                ("saved_but_not_loaded", "no_messages_persisted"), "of a storage with the sessions of all users"
            ),
        },
    ),
    "definable": Suite(  # its wheel has the tests: FROM is the environment's site-packages
        distribution="definable",
        folder=".",
        files=("tests_e2e/memory/test_memory.py",),
        left_out={
            "manual_distillation": "of Definable's own distillation",
            "test_context_manager": "of a private attribute",
            "survives": "of a store that is not Aftermind's",
        },
        note="Tests of Definable's stores alone do not run: Aftermind's has only what is of one user.",
    ),
    "langgraph": Suite(
        distribution="langgraph-checkpoint",
        folder="libs/checkpoint",
        files=("tests/test_store.py",),
        note="Blocking calls that the tests make in a running event loop run in a thread.",
    ),
    "loomflow": Suite(
        distribution="loomflow",
        folder=".",
        files=(
            "tests/test_memory_gdpr.py",
            "tests/test_memory_graph.py",
            "tests/test_multi_user_isolation.py",
            "tests/test_recall_facts_protocol.py",
            "tests/test_recall_scored.py",
        ),
        left_out={
            **dict.fromkeys(("sqlite", "chroma", "vector", "postgres", "redis"), "of loomflow's other stores"),
            "isolation_warning": "of a warning that loomflow's own stores give",
        },
    ),
    "openai-agents": Suite(
        distribution="openai-agents",
        folder=".",
        files=(
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_persistence_sanitize.py",
        ),
        left_out={
            "test_sqlite_session_close": SQLITE,
            "corrupt": SQLITE,
            "file_lock": SQLITE,
            "worker_threads": SQLITE,
            "write_lock": SQLITE,
            "rolls_back": SQLITE,
            "rollback_failure": SQLITE,
            "post_commit_cancellation": SQLITE,
        },
    ),
}


def main(name: str, folder: Path) -> int:
    """Run the suite, and keep its result; the exit code is 0 if nothing failed."""
    result = conformance.run(folder) if name == "mcp" else run_pytest(name, SUITES[name], folder)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = {**result, "date": datetime.now(UTC).date().isoformat()}
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    return 0 if result["passed"] == result["total"] else 1


def run_pytest(name: str, suite: Suite, folder: Path) -> dict[str, Any]:
    """The result of a framework's own tests."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        options = ["-p", "shim", "-p", "no:cacheprovider", "--import-mode=append", f"--junitxml={report}"]
        # Of this project's configuration and the suite's, none: warnings of the framework are its own matter.
        given = {"addopts": "", "asyncio_mode": "auto", "filterwarnings": "ignore", "timeout": "300"}
        options += [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
        options += [] if suite.has_conftest else ["--noconftest"]
        chosen = " and ".join(f"not {part}" for part in suite.left_out)
        subprocess.run(
            [Path(sys.executable).parent / "pytest", *options, "-k", chosen, *suite.files],
            cwd=folder / suite.folder,
            env={**os.environ, "PYTHONPATH": str(HERE), "UPSTREAM_SUITE": name, "OPENAI_API_KEY": "key"},
            check=False,
        )
        totals = ET.parse(report).getroot().find("testsuite")
    assert totals is not None
    total = int(totals.get("tests", 0))
    bad = sum(int(totals.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
    return {
        "distribution": suite.distribution,
        "version": version(suite.distribution),
        "passed": total - bad,
        "total": total,
        "left_out": sorted(set(suite.left_out.values())),
        "note": suite.note,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
