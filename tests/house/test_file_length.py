"""Files stay readable in one sitting. A report, and a wall only where a file has become two."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
READABLE = 300  # lines; the ceiling that the house style aims at
WALL = 450


def test_no_file_has_become_two() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for root in ("app", "tasks", "workers", "tests", "benchmarks")
        for path in (ROOT / root).rglob("*.py")
    }
    long = {name: lines for name, lines in lengths.items() if lines > READABLE}
    for name, lines in sorted(long.items(), key=lambda each: -each[1]):
        print(f"{lines:5} {name}")  # noqa: T201  # the report: pytest shows it with -rP, or where the test fails

    assert lengths
    sources = ("app", "tasks", "workers")
    assert not {name: lines for name, lines in long.items() if lines > WALL and name.startswith(sources)}
