"""The estimate and the upper bound of tokens against counts of the real tokenizer."""

import random
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aftermind.llm import token_count as llm_token_count

# Counted by the o200k_base encoding (gpt-tokenizer 3), special tokens as text.
COUNTED = [
    ("I live in Oslo and work as a nurse.", 10),
    ("My favourite colour is blue!", 6),
    ("antidisestablishmentarianism", 6),
    ("https://example.com/a/b?c=d&e=f#g", 12),
    ("def f(x):\n    return x ** 2\n", 11),
    ("1234567890", 4),
    ("3.14159, 2.71828; 1,000,000", 17),
    ("Ich wohne seit drei Jahren in München.", 9),
    ("Donaudampfschifffahrtsgesellschaftskapitän", 13),
    ("J'habite à Paris, près de l'Étoile.", 13),
    ("Я живу в Москве уже десять лет.", 10),
    ("私は東京に住んでいます。", 8),
    ("我住在北京\uff0c喜欢喝茶。", 9),
    ("나는 서울에 살아요.", 6),
    ("أعيش في القاهرة", 4),
    ("שלום עולם", 2),
    ("मैं दिल्ली में रहता हूँ", 5),
    ("ฉันอยู่ที่กรุงเทพ", 7),
    ("\U0001f600\U0001f389\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", 14),
    ("a b c d e f g h", 8),
    ("    \n\n\t\t  x", 3),
    ("UPPERCASE SHOUTING TEXT", 7),
    ("camelCaseIdentifierName snake_case_identifier", 7),
    ('{"a": [1, 2, {"b": null}]}', 15),
    ("xqzjkvwpfghbtd", 10),
    ("aaaaaaaaaaaaaaaaaaaaaaaa", 3),
    ("It's 12:30 — isn't it?", 9),
    ("\u200b\u200b\u0301e\u0301", 4),
    ("", 0),
    ("  ", 1),
    (" x", 1),
    ("\n\n\n\n", 1),
    ("Hello<|endoftext|>", 8),
    ("ZZZZ9999zzzz", 6),
    ("$$$ !!! ???", 4),
    ("tôi sống ở Hà Nội", 6),
    ("Ελλάδα", 3),
    ("Iñtërnâtiônàlizætiøn", 13),
    ("don't won't can't I'll we've", 5),
    ("Qx7Lk29PzWv0", 11),
    ("base64: SWdub3JlIGFsbCBwcmV2aW91cw==", 20),
    ("0x7f3a9bc1", 9),
    ("\r\n\r\n", 1),
    ("a\x00b", 3),
    ("  - item\n  - item two\n", 9),
    ("MiXeD cAsE wOrDs", 9),
    ("Kfz-Haftpflichtversicherung", 6),
    ("qqq", 2),
    ("Xz", 2),
    ("jkl;asdf", 4),
    ("ﬁ ligature", 3),
    ("½ ¼ ²", 5),
]


@pytest.mark.parametrize(("text", "count"), COUNTED)
def test_the_upper_bound_is_never_below_the_tokenizer(text: str, count: int) -> None:
    assert llm_token_count.upper_bound(text) >= count


def test_the_upper_bound_of_english_is_no_more_than_twice_its_tokens() -> None:
    assert llm_token_count.upper_bound("I live in Oslo and work as a nurse.") <= 20


def test_nothing_has_no_tokens() -> None:
    assert llm_token_count.estimate("") == llm_token_count.upper_bound("") == 0


@pytest.mark.parametrize("seed", range(20))
def test_junk_is_counted_by_the_character(seed: int) -> None:
    drawn = random.Random(seed)
    junk = "".join(drawn.choices(string.ascii_letters + string.digits, k=64))

    assert llm_token_count.upper_bound(junk) >= 44  # o200k takes 35 to 44 tokens for such texts


@given(st.text(st.sampled_from("aaabZQz059  \n\t\r\x1f.<_"), min_size=1, max_size=60))
@example("at 2025-01-01 00:12, HelloWorld internationally\n")
def test_a_sign_beyond_ascii_adds_its_own_tokens_alone(text: str) -> None:
    # ASCII is counted another way than the rest: both have to agree.
    assert llm_token_count.upper_bound(f"{text}\N{EURO SIGN}") == llm_token_count.upper_bound(text) + 3


# Stands for the extra: its data are a download, which is not to be had where tests run.
TOKENIZER = """
import threading

may_load = threading.Event()

class Words:
    def encode(self, text, disallowed_special):
        return text.split()

def get_encoding(name):
    assert name == "o200k_base"
    may_load.wait(20)
    return Words()
"""
COUNTING = """
import threading, tiktoken
from aftermind.llm import token_count as tokens

estimated = tokens.count("I live in Oslo."), tokens.is_exact()
tiktoken.may_load.set()
[thread.join(20) for thread in threading.enumerate() if thread.daemon]
print(estimated == (tokens.estimate("I live in Oslo."), False), tokens.count("I live in Oslo."), tokens.is_exact())
"""


def test_nobody_waits_for_the_tokenizer_to_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.py").write_text(TOKENIZER)
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){COUNTING}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["True", "4", "True"]


# Counted by o200k_base (tiktoken 0.14).
RUNNING_TEXT = {
    "english": (
        "Hey Mel! Good to see you! How have you been? I went to the support group yesterday and it was so powerful. "
        "The stories were inspiring, and I was really thankful for all the encouragement. "
        "What about your pottery class?"
    ),
    "code": (
        "def measure(ranked: list[str], evidence: set[str]) -> dict[str, float]:\n"
        '    """Recall of the first ten."""\n'
        "    found = [each for each in ranked[:10] if each in evidence]\n"
        "    if not evidence:\n        return {}\n"
        '    return {"recall@10": len(found) / len(evidence), "count": 10}\n'
    ),
    "chinese": (
        "我昨天和朋友去了上海的博物馆\uff0c看到了很多古代的瓷器和书画。请把会议改到下周三下午三点\uff0c我到时候会在北京出差。"
    ),
    "japanese": "私は東京に住んでいて、毎日電車で会社に通っています。コーヒーよりも紅茶のほうが好きです。"
    "来週の水曜日に大阪へ出張します。",
    "korean": "어제 친구와 함께 영화를 보러 갔는데 정말 재미있었어요. 다음 주 수요일에 부산으로 출장을 갈 예정입니다.",
    "emoji": "Great news! \U0001f389\U0001f389 So happy for you \U0001f60a "
    "Let's go hiking \U0001f3d4\ufe0f\U0001f97e tomorrow \u2600\ufe0f \u2764\ufe0f\U0001f525\U0001f44d",
}
COUNTED_RUNNING_TEXT = {"english": 47, "code": 74, "chinese": 43, "japanese": 45, "korean": 31, "emoji": 28}


@given(st.lists(st.text(st.sampled_from("aAB0 .\n'\x00\x7f\u6f22x9"), max_size=40), max_size=8))
def test_texts_counted_in_one_pass_count_as_they_do_alone(texts: list[str]) -> None:
    assert llm_token_count.estimate_each(texts) == [llm_token_count.estimate(text) for text in texts]


@pytest.mark.parametrize("kind", RUNNING_TEXT)
def test_the_estimate_is_within_15_percent_of_the_tokenizer(kind: str) -> None:
    assert llm_token_count.estimate(RUNNING_TEXT[kind]) == pytest.approx(COUNTED_RUNNING_TEXT[kind], rel=0.15)
