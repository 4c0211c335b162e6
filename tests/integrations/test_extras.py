"""An integration whose framework is missing says which extra installs it. Runs without any framework."""

import sys
from importlib import import_module

import pytest

from aftermind import errors

EXTRAS = {
    "aftermind.integrations.agent_framework": ("agent_framework", "agent-framework"),
    "aftermind.integrations.anthropic": ("anthropic", "anthropic"),
    "aftermind.integrations.crewai": ("crewai", "crewai"),
    "aftermind.integrations.google_adk": ("google", "google-adk"),
    "aftermind.integrations.llama_index": ("llama_index", "llama-index"),
    "aftermind.integrations.definable": ("definable", "definable"),
    "aftermind.integrations.loomflow": ("loomflow", "loomflow"),
    "aftermind.integrations.tframex": ("tframex", "tframex"),
    "aftermind.integrations.upsonic": ("upsonic", "upsonic"),
    "aftermind.integrations.pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "aftermind.integrations.strands": ("strands", "strands"),
    "aftermind.integrations.langgraph": ("langgraph", "langgraph"),
    "aftermind.integrations.langchain": ("langchain_core", "langgraph"),
    "aftermind.integrations.mcp": ("mcp", "mcp"),
    "aftermind.integrations.openai_agents": ("agents", "openai-agents"),
    "aftermind.integrations.starlette": ("starlette", "server"),
}


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_framework_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, extra = EXTRAS[module]
    for name in [name for name in sys.modules if name.split(".")[0] == package or name == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(errors.ExtraMissing, match=f"pip install 'aftermind\\[{extra}\\]'") as missing:
        import_module(module)

    assert (missing.value.extra, missing.value.package.split(".")[0]) == (extra, package)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Definable can be installed here")
def test_a_framework_that_needs_a_later_python_says_so() -> None:
    with pytest.raises(errors.ExtraMissing, match=r"needs Python 3\.12 or later, and this is Python 3\.11"):
        import_module("aftermind.integrations.definable")
