"""The attack corpus through an integration: what is recalled of it must stay data."""

import re
from collections.abc import Awaitable, Callable
from html import unescape
from xml.etree import ElementTree

from aftermind import Memory, Message, Role
from tests.attacks.corpus import attacks

QUESTION = "What do you remember?"
HARMLESS = "I live in Oslo."
BLOCK = re.compile(r"<memory[^>]*>.*?</memory>", re.DOTALL)

Ask = Callable[[str, str], Awaitable[tuple[str, str]]]  # user and question; the model's instructions, and all else
Tell = Callable[[str, Message], Awaitable[object]]  # user and what the user's memory gets
Split = Callable[[str], tuple[str, str]]  # a prompt; all of it but the place of data, and the text in that place


async def assert_attacks_stay_data(
    memory: Memory, ask: Ask, *, tell: Tell | None = None, split: Split | None = None
) -> None:
    """Given users who have said one attack each, when a model is asked, its prompt differs from a harmless user's only
    in the text of one element of one `<memory>` block, and its instructions do not differ.

    `tell` is how memory gets a message, by default as one of the user's; `split` finds another place than that block.
    """

    async def remember(user: str, message: Message) -> None:
        await memory.remember([message], user_id=user)

    tell, split = tell or remember, split or _split_block
    await tell("harmless", Message(role=Role.USER, content=HARMLESS))
    wanted_instructions, harmless = await ask("harmless", QUESTION)
    wanted, said = split(harmless)
    assert HARMLESS in said
    shown = 0
    for number, attack in enumerate(attacks()):
        await tell(f"attack-{number}", attack.message)
        instructions, prompt = await ask(f"attack-{number}", QUESTION)
        if not prompt:  # nothing was recalled
            continue
        frame, said = split(prompt)
        assert instructions == wanted_instructions, attack.text
        assert frame == wanted, f"{attack.text!r} made of the prompt: {prompt}"
        shown += _letters(attack.text) in _letters(said)
    assert shown >= 0.8 * len(attacks())  # the rest is shortened, or has characters that XML cannot hold


def _split_block(prompt: str) -> tuple[str, str]:
    """The prompt with its block reduced to the tags and the number of episodes' lines, and the text in the block.

    An episode is a line of text, or an element `turn` on a line of its own if a mark warns of it.
    """
    found = BLOCK.search(prompt)
    if found is None:
        return prompt, ""
    root = ElementTree.fromstring(found[0])
    tags = " ".join(each.tag for each in root.iter() if each.tag != "turn")
    lines = [_line_count(each) for each in root.iter("episodes")]
    return prompt.replace(found[0], f"[{tags} {lines}]"), unescape("\n".join(root.itertext()))


def _line_count(element: ElementTree.Element) -> int:
    """How many lines an element has; an indented line is part of the one before it."""
    return "".join(element.itertext()).replace("\n  ", " ").strip("\n").count("\n") + 1


def _letters(text: str) -> str:
    return "".join(each for each in text if each.isalnum() and each.isascii())
