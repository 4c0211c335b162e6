"""Conversations as people write chats: one thread, split messages, typos, nicknames, lower case, filler. Seeded.

A message that is split keeps its evidence: each part leads to the turn that it came from. Sessions are days
of one thread.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

SPLIT, LOWER, TYPO, FILLER = 0.7, 0.7, 0.03, 0.15  # of long turns, of speakers, of words, of turns
MOST_PARTS = 4
LEAST_PART = 25  # characters
FILLERS = ("lol", "haha", "brb", "ok", "omg", "yeah", "hmm", "one sec", "sorry, was on the phone", "k", "same", "nice")
PART = "~"  # between the id of a turn and the number of its part

_CLAUSES = re.compile(r"(?<=[.!?;])\s+|,\s+(?=(?:and|but|so|because|then)\b)")


def perturb(conversation: Mapping[str, Any], seed: int) -> dict[str, Any]:  # Any: JSON of the data
    """The conversation with its turns as messages of a chat; questions and evidence stay as they are."""
    drawn = random.Random(f"{seed}:{conversation['id']}")
    names = sorted({turn["speaker"] for session in conversation["sessions"] for turn in session["turns"]})
    lower = {name for name in names if drawn.random() < LOWER}
    sessions = []
    for session in conversation["sessions"]:
        turns = []
        for turn in session["turns"]:
            turns += _messages(turn, names, lower, drawn)
        sessions.append({**session, "turns": turns})
    return {**conversation, "sessions": sessions, "is_one_thread": True}


def _messages(turn: Mapping[str, Any], names: list[str], lower: set[str], drawn: random.Random) -> list[dict[str, Any]]:
    parts = _parts(turn["text"]) if drawn.random() < SPLIT else [turn["text"]]
    found = []
    for number, part in enumerate(parts):
        text = _misspelt(_nicknamed(part, names), drawn)
        text = text.lower() if turn["speaker"] in lower else text
        caption = turn.get("caption") if number == len(parts) - 1 else None
        name = turn["id"] if number == 0 else f"{turn['id']}{PART}{number}"
        found.append(
            {"id": name, "speaker": turn["speaker"], "text": text, **({"caption": caption} if caption else {})}
        )
    if drawn.random() < FILLER:
        filler = {"id": f"{turn['id']}{PART}filler", "speaker": drawn.choice(names), "text": drawn.choice(FILLERS)}
        found.append(filler)
    return found


def _parts(text: str) -> list[str]:
    """At clauses, none of them tiny, at most so many."""
    found: list[str] = []
    for clause in _CLAUSES.split(text):
        if found and (len(found[-1]) < LEAST_PART or len(found) == MOST_PARTS):
            found[-1] += f" {clause}"
        else:
            found.append(clause)
    return found


def _nicknamed(text: str, names: list[str]) -> str:
    for name in names:
        if len(name) > 4:
            text = re.sub(rf"\b{re.escape(name)}\b", name[:3], text)
    return text


def _misspelt(text: str, drawn: random.Random) -> str:
    return " ".join(_typo(word, drawn) if len(word) > 3 and drawn.random() < TYPO else word for word in text.split(" "))


def _typo(word: str, drawn: random.Random) -> str:
    at = drawn.randrange(1, len(word) - 1)
    match drawn.randrange(3):
        case 0:
            return word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]
        case 1:
            return word[:at] + word[at + 1 :]
        case _:
            return word[:at] + word[at] + word[at:]
