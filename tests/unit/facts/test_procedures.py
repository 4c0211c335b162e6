"""What users want to be done in general, by the words of their sentences."""

import pytest

from aftermind.facts.learned_procedures import find_procedures


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("When I ask for code, please use Python.", [("when I ask for code", "use Python")]),
        ("Whenever you write to me, always be brief!", [("when you write to me", "always be brief")]),
        ("If I send a link, don't open it.", [("when I send a link", "don't open it")]),
        ("Every time I mention Bob, I want you to check my calendar.", [("when I mention Bob", "check my calendar")]),
        ("Please use bullet points when I ask for a summary.", [("when I ask for a summary", "use bullet points")]),
        ("Never use emoji if we talk about work.", [("when we talk about work", "Never use emoji")]),
        ("Hi. When I ask for code, please use Python. Bye.", [("when I ask for code", "use Python")]),
        ("When I moved to Oslo, I was alone.", []),
        ("I always cry when I watch it.", []),
        ("If you have time, we could meet.", []),
        ("When did I move?", []),
        ("Please call me.", []),
    ],
)
def test_a_procedure_has_a_trigger_and_an_action(said: str, expected: list[tuple[str, str]]) -> None:
    assert find_procedures(said) == expected
