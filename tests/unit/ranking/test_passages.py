"""Where passages of long texts begin and end."""

import pytest

from aftermind.ranking.passages import LONG_BYTES, headings_before, passage_texts, split

SENTENCE = "The committee approved the minutes without changes. "


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE * 200,
        "2025-05-01 10:00:00 INFO done\n" * 500,
        "x" * 20_000,
        "\n" * 5_000,
        "我昨天去了北京看了长城。" * 300,
        "\N{FAMILY}\N{ZERO WIDTH JOINER}" * 2_000,
        "# A\n\n" + SENTENCE * 50,
    ],
    ids=["sentences", "lines", "no border", "blank", "no blanks", "emoji", "headings"],
)
def test_passages_cover_a_text_without_gaps_and_are_of_limited_size(text: str) -> None:
    passages = split(text)

    assert "".join(text[each.start : each.end] for each in passages) == text
    assert max(len(text[each.start : each.end].encode()) for each in passages) <= LONG_BYTES
    assert [each.number for each in passages] == list(range(1, len(passages) + 1))
    assert {each.count for each in passages} == {len(passages)}


def test_a_short_text_has_no_passages() -> None:
    assert split(SENTENCE * 20) == ()
    assert passage_texts(SENTENCE * 20) == []


def test_passages_end_with_a_sentence_or_a_line() -> None:
    assert all(part.endswith(". ") for part in passage_texts(SENTENCE * 200))
    assert all(part.endswith("done\n") for part in passage_texts("2025-05-01 10:00:00 INFO done\n" * 500))


def test_a_passage_begins_with_its_heading_and_later_ones_of_the_section_keep_it() -> None:
    text = f"# Guide\n\n{SENTENCE * 10}\n\n## Setup\n\n{SENTENCE * 40}\n\n## Use\n\n{SENTENCE * 40}"

    parts = passage_texts(text)

    assert parts[0].startswith("Guide\n# Guide")
    assert [part.split("\n")[0] for part in parts[1:]] == sorted(part.split("\n")[0] for part in parts[1:])
    assert {part.split("\n")[0] for part in parts[1:]} == {"Guide > Setup", "Guide > Use"}


def test_comments_in_fenced_code_are_no_headings() -> None:
    text = f"# Guide\n\n```python\n# not a heading\n```\n{SENTENCE * 60}"

    assert headings_before(text, len(text) - 1) == "Guide"
