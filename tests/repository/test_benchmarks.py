"""What the benchmarks start as processes of their own exists: nothing else would notice a renamed module."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_program_that_a_run_starts_exists() -> None:
    tree = ast.parse((ROOT / "benchmarks/harness/phase.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    names = {ast.literal_eval(call.args[0]) for call in calls if call.func.attr == "_start" and call.args}  # type: ignore[attr-defined]
    literals = [
        node.value
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    modules = {each for each in literals if re.fullmatch(r"benchmarks\.harness\.\w+", each)}
    modules |= {f"benchmarks.harness.{name}" for name in names}

    assert len(modules) > 5
    assert [each for each in sorted(modules) if find_spec(each) is None] == []
