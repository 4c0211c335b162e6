"""What users import is pinned: nothing becomes public by accident, and nothing goes away unseen."""

import ast
from pathlib import Path

import aftermind

PUBLIC = [
    "AftermindError",
    "Agent",
    "AgentResult",
    "Block",
    "Episode",
    "Fact",
    "Match",
    "Memory",
    "MemoryEvent",
    "MemoryFactsExtracted",
    "MemoryGap",
    "MemoryRecallCompleted",
    "MemoryRecallStarted",
    "MemoryUpdateCompleted",
    "MemoryUpdateFailed",
    "MemoryUpdateQueued",
    "MemoryUpdateStarted",
    "Message",
    "Profile",
    "RecallBlock",
    "Receipt",
    "Role",
    "RunContext",
    "Scope",
    "Settings",
    "Summary",
    "Tool",
    "block_tools",
    "get_run_context",
]


def test_the_public_names_are_these() -> None:
    assert aftermind.__all__ == PUBLIC


def test_the_public_names_are_sorted() -> None:
    assert aftermind.__all__ == sorted(aftermind.__all__)


def test_public_classes_say_that_they_are_of_aftermind() -> None:
    homes = {name: getattr(aftermind, name).__module__ for name in aftermind.__all__}

    assert set(homes.values()) == {"aftermind"}, homes


def test_dir_shows_what_can_be_imported() -> None:
    assert set(aftermind.__all__) <= set(dir(aftermind))


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    tree = ast.parse(Path(aftermind.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}

    assert seen == {(home, name) for home, names in aftermind._HOMES.items() for name in names}
    assert {name for _, name in seen} == set(aftermind.__all__)
