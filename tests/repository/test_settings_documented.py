"""The reference of settings is the settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aftermind.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_is_for(name: str) -> None:
    description = Settings.model_fields[name].description or ""

    assert len(description) > 15, f"{name} needs a description"
    assert description.endswith("."), f"the description of {name} is no sentence"


def test_the_pages_are_what_the_generator_writes() -> None:
    # In a process of its own, as the command runs: other tests add to the classes of this one.
    code = f"import json, runpy; made = runpy.run_path({str(DOCS / 'generate.py')!r})['PAGES']; "
    code += "print(json.dumps({name: page() for name, page in made.items()}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)

    for name, page in json.loads(done.stdout).items():
        assert (DOCS / name).read_text() == page, f"docs/{name} is old: python docs/generate.py"


def test_every_setting_is_on_its_page() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()

    assert not [name for name in Settings.model_fields if f"{name.upper()}`" not in page]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings(namespace="a").namespace = "b"
