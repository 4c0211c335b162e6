"""What every benchmark needs: its two switches, a table with targets, a JSON file, and the embedded stack."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from aftermind.stack import Endpoints, Stack

Value = float | int | str | bool | None


def arguments(description: str, *, more: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """`--quick` and `--json FILE`, which every benchmark has, and what `more` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under a minute, with wider noise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    if more is not None:
        more(parser)
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. `target` is what it has to meet, as text; `holds` whether it does."""

    name: str
    value: Value
    target: str = ""
    holds: bool | None = None
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """The figures of one run, in order, with the surroundings they were measured in."""

    title: str
    facts: dict[str, Value] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # Any: JSON beside the figures

    def add(
        self, name: str, value: Value, *, at_most: float | None = None, at_least: float | None = None, note: str = ""
    ) -> None:
        """Note a figure; a bound makes it a target."""
        bounds = [f"{sign} {bound:g}" for sign, bound in (("≥", at_least), ("≤", at_most)) if bound is not None]
        holds: bool | None = None
        if bounds and isinstance(value, int | float):
            holds = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        self.figures.append(Figure(name=name, value=value, target=", ".join(bounds), holds=holds, note=note))

    @property
    def failed(self) -> list[Figure]:
        """Figures that miss their target."""
        return [figure for figure in self.figures if figure.holds is False]

    def show(self) -> None:
        """Print surroundings and figures."""
        facts = ", ".join(f"{name} {value}" for name, value in {**surroundings(), **self.facts}.items())
        table = Table(title=self.title, caption=facts, title_justify="left", caption_justify="left")
        for name, justify in (("figure", "left"), ("value", "right"), ("target", "right"), ("", "left")):
            table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
        for figure in self.figures:
            mark = {None: "", True: "ok", False: "missed"}[figure.holds]
            table.add_row(figure.name, _shown(figure.value), figure.target, f"{mark} {figure.note}".strip())
        Console().print(table)

    def write(self, path: Path) -> None:
        """The figures at the top level, surroundings and details beside them."""
        data = {figure.name: figure.value for figure in self.figures}
        beside = {"surroundings": {**surroundings(), **self.facts}, **self.details}
        beside["missed"] = [figure.name for figure in self.failed]
        path.write_text(json.dumps({**data, **beside}, indent=2) + "\n")

    def finish(self, json_path: Path | None) -> int:
        """Show, write, and the exit code: 1 where a target was missed."""
        self.show()
        if json_path is not None:
            self.write(json_path)
        return 1 if self.failed else 0


def surroundings() -> dict[str, Value]:
    """What figures depend on and no benchmark chooses."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "celery": version("celery"),
        "machine": f"{sys.platform} {platform.machine()}",
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of them are at or below, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def embedded_stack(
    *, replica: bool = False, postgres_settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Stack, Endpoints]]:
    """A stack of the benchmark's own in a temporary folder, as users get it from `aftermind up`, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="aftermind-bench-") as folder:
        stack = Stack(Path(folder) / "stack", replica=replica, postgres_settings=postgres_settings)
        try:
            yield stack, stack.up()
        finally:
            stack.destroy()


def redis_facts(url: str) -> dict[str, Value]:
    """Which server it is and how it syncs its append-only file."""
    with redis.Redis.from_url(url) as client:
        info: dict[str, Any] = client.info("server")  # Any: redis-py's mixed values
        sync: dict[str, str] = client.config_get("append*")
    name = "valkey" if "valkey_version" in info else "redis"
    number = info.get("valkey_version", info["redis_version"])
    return {"server": f"{name} {number}", "appendonly": sync["appendonly"], "appendfsync": sync["appendfsync"]}


def _shown(value: Value) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else value
