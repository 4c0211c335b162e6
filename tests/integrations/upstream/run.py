"""Run a framework's own tests with our implementation: `python run.py SUITE FOLDER`, in the integration's environment.

FOLDER is a checkout of the framework's repository; for `mcp` see `conformance.py`. Where integrations share an
environment, `make` is given it: `ENVIRONMENT=agents`, or `langgraph` for its SQLite store. The result goes into
`results.json`, of which `docs/generate.py` makes a table.
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
ENCRYPTED = "of an encrypted session that relies on the transactions, rows or negative limits of SQLite's session"
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
        distribution="crewai",
        folder=".",
        files=(
            "tests/memory/test_unified_memory.py",
            "tests/memory/test_memory_root_scope.py",
            "tests/memory/test_dimension_mismatch.py",
            "tests/memory/test_lancedb_update.py",
        ),
        left_out={
            "serialization_failure": "of metadata that is not JSON: Aftermind stores dates and sets as JSON",
        },
        has_conftest=False,
    ),
    "strands": Suite(
        distribution="strands-agents",
        folder=".",
        files=(
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/_context_manager/test_stash.py",
            "tests/strands/_context_manager/test_stash_integration.py",
            "tests/strands/_context_manager/test_retrieval_tool.py",
            "tests/strands/_context_manager/test_context_manager.py",
            "tests/strands/vended_plugins/context_offloader/test_plugin.py",
        ),
        left_out={
            **dict.fromkeys(("namespac", "clear", "strategy", "normalization", "rejects"), OWN_STORAGES),
            **dict.fromkeys(("CallerScopedRoot", "storage_is_exact_root", "scoped_agent_storage"), OWN_STORAGES),
            "StorageTypeName": "of the name of a class",
            "SnapshotStashIntegration": "of snapshots of a storage in the process: Aftermind's outlives it",
            **dict.fromkeys(
                ("interrupted_graph", "interrupted_swarm", "RetrievalToolErrorStatus"),
                "with a fixture that needs doubles of AWS (moto)",
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
        note="Its other tests of a memory call models of providers.",
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
    "langgraph-sqlite": Suite(  # of another store with the same interface
        distribution="langgraph-checkpoint-sqlite",
        folder="libs/checkpoint-sqlite",
        files=("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        left_out={
            **dict.fromkeys(
                ("store_initialization", "migrations", "injection_vulnerability", "escape_glob", "match_pattern"),
                "of SQLite's tables and statements",
            ),
            "indexable_condition": "of SQLite's tables and statements",
            "hyphens_and_digits": "of filters by a path into a value, which LangGraph's other stores have not",
            "test_ttl_refresh": "of the rows that a sweep deletes",
            "ttl_override": "of a default that differs from LangGraph's: a read renews an item",
            "no_running_loop": "of the kind of error of a blocking call in an event loop",
        },
    ),
    "llama-index": Suite(
        distribution="llama-index-core",
        folder="llama-index-core",
        files=(
            "tests/memory/test_memory_base.py",
            "tests/memory/test_memory_blocks_base.py",
            "tests/memory/test_memory_schema.py",
        ),
        left_out={"all_block_types": "of the system message, into which Aftermind inserts nothing by default"},
        note="Tests of release 0.14.14, the newest at hand: source distributions have none.",
        has_conftest=False,
    ),
    "google-adk": Suite(
        distribution="google-adk",
        folder=".",
        files=("tests/unittests/memory/test_in_memory_memory_service.py",),
        left_out={
            **dict.fromkeys(("add_session", "add_events"), "of a private attribute"),
            "case_insensitive": "of the number of matches: Aftermind adds the neighbouring message",
        },
        note="Tests of release 2.5.0, the newest at hand: source distributions have none.",
        has_conftest=False,
    ),
    "tframex": Suite(
        distribution="tframex",
        folder=".",
        files=("tests/test_streaming.py",),
        left_out={
            **dict.fromkeys(
                ("tool_error_in_streaming", "max_iterations_in_streaming"), "that fail with TFrameX's own memory too"
            ),
            "enterprise": "of its enterprise storage, with a package that TFrameX does not require (aiosqlite)",
        },
        note="Its agents run with Aftermind's memory; it has no tests of a memory alone.",
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
            "tests/test_facts.py",
            "tests/test_auto_extract.py",
            "tests/test_auto_extract_background.py",
            "tests/test_auto_extract_telemetry.py",
            "tests/test_memory_injection.py",
            "tests/test_multi_tenant_load.py",
            "tests/test_team_memory_propagation.py",
            "tests/test_tool_transcript_persistence.py",
            "tests/test_user_id_isolation_full.py",
            "tests/test_validation_gdpr.py",
        ),
        left_out={
            **dict.fromkeys(
                ("recall_text_substring", "no_embedder_falls"),
                "of the number of facts: Aftermind adds less probable ones",
            ),
            **dict.fromkeys(
                ("supersession_invalidates", "case_variant_predicates"),
                "of the id of a fact that has ended, which is a new one",
            ),
            "embedding_based_recall": "of an embedder of loomflow's",
            **dict.fromkeys(
                ("auto_extracts_facts_into_memory", "known_facts_in_system_message"),
                "of a predicate, of whose wordings Aftermind makes one",
            ),
            **dict.fromkeys(
                ("consolidate_runs_extractor", "auto_consolidate", "agent_consolidate_method"),
                "of loomflow's extraction: Aftermind's workers extract facts",
            ),
            "no_matches_falls_back": "of the newest episodes where none fits: Aftermind recalls none",
            "pending_set_is_bounded": "of elapsed time",
            **dict.fromkeys(("persist_off_writes", "persist_on_writes"), "of a private attribute"),
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
            "tests/memory/test_compaction_model_visibility.py",
            "tests/memory/test_openai_responses_compaction_session.py",
            "tests/extensions/memory/test_encrypt_session.py",
            "tests/test_soft_cancel.py",
            "tests/test_max_turns.py",
        ),
        left_out={
            **dict.fromkeys(("encrypted_pop", "unencrypted_stored_history", "negative_limit"), ENCRYPTED),
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
    """The result of a framework's own tests: of those that make one of our objects, and of all that do not pass."""
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
        cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [each for each in cases if any(each.find(kind) is not None for kind in ("failure", "error", "skipped"))]
    ours = [each for each in cases if each not in bad and each.find(".//property[@name='ours']") is not None]
    return {
        "distribution": suite.distribution,
        "version": version(suite.distribution),
        "passed": len(ours),
        "total": len(ours) + len(bad),
        "left_out": sorted(set(suite.left_out.values())),
        "note": suite.note,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
