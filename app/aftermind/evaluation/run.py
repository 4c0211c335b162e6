"""Ask a memory the questions of a gold set, and measure what it recalls."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from aftermind import errors
from aftermind.evaluation.datasets import GoldConversation, GoldQuestion
from aftermind.evaluation.measures import DEPTHS, IN_BLOCK, Measures, measure, share_found
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.settings import Settings
from aftermind.types import Episode, EpisodeId, Fact, Match

UNLIMITED_TOKENS = 10_000_000
HISTORY_PAGE = 1_000  # episodes that are read in one call, to find evidence by its text
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)

OpenMemory = Callable[[Settings, bool], Memory]  # the bool: inside this process, for conversations to be loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A configuration of recall: settings of the memory and options of each recall."""

    settings: Settings
    options: RecallOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The measures of one question, for each variant. None: none of its evidence is stored."""

    question: GoldQuestion
    user_id: str | None
    measures: tuple[Measures, ...] | None


async def evaluate(
    conversations: Sequence[GoldConversation],
    variants: Sequence[Variant],
    *,
    open_memory: OpenMemory,
    budgets: Sequence[int],
    namespace: str | None = None,
    extract: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> list[Outcome]:
    """Ask every question with every variant. Conversations of a file are loaded into a memory inside this process.

    `extract`: also extract facts from them. `advance` is called after each question. Raises `StoreUnavailable` if a
    recall is degraded.
    """
    in_process = any(each.sessions for each in conversations)
    found: dict[tuple[int, int], list[Measures | None]] = {}  # of the questions, by variant and conversation
    for settings in {id(each.settings): each.settings for each in variants}.values():
        memory = open_memory(settings, in_process)  # one at a time: some stores can be opened only once
        try:
            for row, conversation in enumerate(conversations):
                evidence = await _prepare(memory, conversation, namespace, extract=extract)
                for place, variant in enumerate(variants):
                    if variant.settings is settings:
                        asked = found[place, row] = []
                        for question, right in zip(conversation.questions, evidence, strict=True):
                            measured = await _ask(
                                memory, conversation, question, right, variant.options, budgets, namespace
                            )
                            asked.append(measured)
                            advance()
                if conversation.sessions:
                    await memory.forget(user_id=conversation.user_id, namespace=namespace)
        finally:
            await memory.close()
    outcomes: list[Outcome] = []
    for row, conversation in enumerate(conversations):
        of_variants = zip(*(found[place, row] for place in range(len(variants))), strict=True)
        for question, each in zip(conversation.questions, of_variants, strict=True):
            measures = tuple(measured for measured in each if measured is not None)
            whole = measures if len(measures) == len(variants) else None
            outcomes.append(Outcome(question=question, user_id=conversation.user_id, measures=whole))
    return outcomes


def sampled(conversations: Sequence[GoldConversation], most: int, *, seed: int = 0) -> list[GoldConversation]:
    """At most `most` of the questions, at random; conversations without any are left out."""
    places = [(row, number) for row, each in enumerate(conversations) for number in range(len(each.questions))]
    chosen = set(random.Random(seed).sample(places, min(most, len(places))))
    found = [
        replace(each, questions=[asked for number, asked in enumerate(each.questions) if (row, number) in chosen])
        for row, each in enumerate(conversations)
    ]
    return [each for each in found if each.questions]


def turns_of(matches: Sequence[Match]) -> list[EpisodeId]:
    """The turns that the matches lead to, best first: an episode, or the sources of a fact."""
    found: list[EpisodeId] = []
    for match in matches:
        if isinstance(match.item, Episode):
            found.append(match.item.id)
        elif isinstance(match.item, Fact):
            found += match.item.sources
    return list(dict.fromkeys(found))


async def find_evidence(
    memory: Memory, conversation: GoldConversation, namespace: str | None
) -> list[frozenset[EpisodeId]]:
    """By id or by text among the user's stored episodes."""
    stored = {each.id: _plain(each.content) for each in await _history(memory, conversation.user_id, namespace)}
    found = []
    for question in conversation.questions:
        ids: set[EpisodeId] = set()
        for each in question.evidence:
            if _UUID.fullmatch(each):
                ids |= {EpisodeId(UUID(each))} & stored.keys()
            else:
                text = _plain(each)
                ids |= {id_ for id_, content in stored.items() if text in content}
        found.append(frozenset(ids))
    return found


async def _prepare(
    memory: Memory, conversation: GoldConversation, namespace: str | None, *, extract: bool
) -> list[frozenset[EpisodeId]]:
    """The stored episodes that answer each question; what is to be loaded is loaded."""
    if not conversation.sessions:
        return await find_evidence(memory, conversation, namespace)
    keys: dict[str, EpisodeId] = {}
    receipts = []
    for session in conversation.sessions:
        receipt = await memory.remember(
            session.messages,
            user_id=conversation.user_id,
            session_id=session.session_id,
            namespace=namespace,
            save={"history", "facts"} if extract else {"history"},
        )
        receipts.append(receipt)
        keys |= zip(session.keys, receipt.episode_ids, strict=True)
    for receipt in receipts:
        await (receipt.extracted() if extract else receipt.embedded())
    return [frozenset(keys[key] for key in each.evidence if key in keys) for each in conversation.questions]


async def _history(memory: Memory, user_id: str | None, namespace: str | None) -> list[Episode]:
    found: list[Episode] = []
    while True:
        before = found[0] if found else None
        page = await memory.history(user_id=user_id, namespace=namespace, limit=HISTORY_PAGE, before=before)
        found = [*page, *found]
        if len(page) < HISTORY_PAGE:
            return found


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


async def _ask(
    memory: Memory,
    conversation: GoldConversation,
    question: GoldQuestion,
    evidence: frozenset[EpisodeId],
    options: RecallOptions,
    budgets: Sequence[int],
    namespace: str | None,
) -> Measures | None:
    if not evidence:
        return None
    scope = {"user_id": conversation.user_id, "session_id": question.session_id, "namespace": namespace}
    named = max(len(question.evidence), len(evidence))
    ranked: RecallOptions = {**options, "limit": max(DEPTHS), "token_budget": UNLIMITED_TOKENS}
    found = measure(await _recalled(memory, question.text, scope, ranked), evidence, named=named)
    for budget in budgets:
        shown = await _recalled(memory, question.text, scope, {**options, "token_budget": budget})
        found[f"{IN_BLOCK}{budget}"] = share_found(shown, evidence, named=named)
    return found


async def _recalled(
    memory: Memory, text: str, scope: Mapping[str, str | None], options: RecallOptions
) -> list[EpisodeId]:
    block = await memory.recall(text, **scope, **options)
    if block.degraded:
        hint = "All recalls of an evaluation must be complete. Vectors of another embedder: `aftermind reembed start`."
        raise errors.StoreUnavailable("evaluation", f"a recall was degraded: {block.degraded}", hint)
    return turns_of(block.matches)
