"""The reference of settings is the settings."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from aftermind.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_is_for(name: str) -> None:
    description = Settings.model_fields[name].description or ""

    assert len(description) > 15, f"{name} needs a description"
    assert description.endswith("."), f"the description of {name} is no sentence"


def test_the_pages_are_what_the_generator_writes(generator: ModuleType) -> None:
    for name, page in generator.PAGES.items():
        assert (DOCS / name).read_text() == page(), f"docs/{name} is old: python docs/generate.py"


def test_every_setting_is_on_its_page() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()

    assert not [name for name in Settings.model_fields if f"{name.upper()}`" not in page]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings(namespace="a").namespace = "b"
