"""Writes the generated pages of the reference: `python docs/generate.py`. A test compares them with what is here."""

import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from aftermind.api.health import Component, Health, Waiting
from aftermind.settings import Settings
from aftermind.telemetry.metrics import Instruments
from aftermind.web.routes.metrics import Now
from aftermind_workers import metrics

assert metrics.JOBS, "the workers' are in the default registry"

HERE = Path(__file__).parent
SOURCE = HERE.parent / "app" / "aftermind" / "settings.py"
HEAD = """# Settings

None has to be set. Each comes from the environment, from a `.env` file in the working directory, or from
`Settings(name=…)`. This page is generated from `settings.py` by `python docs/generate.py`.
"""


def settings_page() -> str:
    """Every setting in a table, under the headings of the source."""
    headings = _headings()
    parts = [HEAD]
    for name, field in Settings.model_fields.items():
        if name in headings:
            parts.append(f"\n## {headings[name].capitalize()}\n\n| variable | default | meaning |\n|---|---|---|\n")
        parts.append(
            f"| `{_variable(name, field)}` | {_default(field)} | {_cell(field.description or '')}{_choices(field)} |\n"
        )
    return "".join(parts)


def _variable(name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or f"AFTERMIND_{name.upper()}")


def _default(field: FieldInfo) -> str:
    if field.default is None or field.default == () or field.default is PydanticUndefined:
        return "none"
    return f"`{field.default}`"


def _choices(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not Literal:
        return ""
    return f" One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _headings() -> dict[str, str]:
    """First setting of each group, with the comment above it."""
    found: dict[str, str] = {}
    heading = ""
    for line in SOURCE.read_text().splitlines():
        stripped = line.strip()
        if line.startswith("    # "):
            heading = stripped.removeprefix("# ")
        elif heading and line.startswith("    ") and not line.startswith("     ") and ": " in stripped:
            found[stripped.partition(":")[0]] = heading
            heading = ""
    return found


METRICS_HEAD = """# Metrics

What [`/metrics`](../guides/watching.md) exports. Counters end in `_total`; histograms have `_bucket`, `_count`, `_sum`.
This page is generated from the code by `python docs/generate.py`.
"""


def metrics_page() -> str:
    """Every metric in a table, by who exports it."""
    agent = CollectorRegistry()
    Instruments(agent)
    agents = {family.name for family in agent.collect()}  # in the default registry too, where a service was made before
    workers = [family for family in REGISTRY.collect() if family.name not in agents]
    everything = Health(parts=(Component(name="store", state="ok"),), waiting=Waiting())
    tables = (
        ("How everything is at the scrape: the service", Now(everything).collect()),
        ("What agents count: the service, and `Memory(metrics=…)`", agent.collect()),
        ("What workers and the reconciler count", workers),
    )
    parts = [METRICS_HEAD]
    for heading, families in tables:
        parts.append(f"\n## {heading}\n\n| metric | kind | meaning |\n|---|---|---|\n")
        ours = [family for family in families if family.name.startswith("aftermind_")]
        parts += [f"| `{_exported(family)}` | {family.type} | {_cell(family.documentation)} |\n" for family in ours]
    return "".join(parts)


def _exported(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


PAGES = {"reference/settings.md": settings_page, "reference/metrics.md": metrics_page}


def main() -> None:
    """Write every generated page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
