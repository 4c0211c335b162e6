"""First-person statements by rule, in the same schema as a model's answer. It reads the forms of `grammars/` alone."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from aftermind.facts import predicates
from aftermind.llm import text_process_pool
from aftermind.llm.injection.detect import suspicion
from aftermind.llm.offline import dates
from aftermind.llm.offline.grammar import LANGUAGES, FormEffect, FormRule, Grammar, grammar_of
from aftermind.llm.offline.object_phrase import objects_in
from aftermind.llm.protocols import Extraction, ExtractionRequest, TurnText, Usage
from aftermind.ranking.languages import language_name
from aftermind.ranking.tokenizer import language_of
from aftermind.types.assertion import Assertion, Operation
from aftermind.types.fact import USER, Cardinality

# statements of people about themselves are shorter; patterns are not linear in a sentence
MAX_SENTENCE_CHARACTERS = 400
SELF_INTRODUCTION = 8  # characters behind a greeting that show whether it belongs to the next sentence: " I am A"
MAX_CLAIMS = 100  # of a turn, as of a model's answer
NOTHING_FOUND = "no first-person statement of a known form (rules, not a model)"

_BREAK = re.compile(r"[.!?…]++(?=[\s\"')\]”»]|$)|\n")
_LAST_WORD = re.compile(r"[^\s.]{1,20}$")
_QUOTED = re.compile(r"[\"“«„][^\"”»“\n]{0,300}[\"”»“]|(?<!\w)'[^'\n]{3,300}'(?!\w)")
_SPACES = re.compile(r"[ \t\u00a0]+")
_BOUNDARY = frozenset(",;:-\u2013\u2014(…*>•~/¡¿")
# One form of words may hold both: "I work as a nurse at Acme".
_TOGETHER = (
    *({"has_job", "works_at"}, {"studies", "attends"}, {"kin", "has_children"}, {"birthday", "born_in"}),
    *({"spouse", "relationship_status"}, {"has_job", "diet"}, {"lives_in", "kin"}),
)
_AT_AN_EDGE = re.compile(r"\b(?:since|from|until|till|before|after|between)\b", re.IGNORECASE)
_NOW = re.compile(r"\bnow\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_SINCE = re.compile(r"\bsince\b", re.IGNORECASE)
_TAIL = re.compile(r"[,;\u2013\u2014-]\s{0,3}(?=[^,;\u2013\u2014-]*$)")


@dataclass(frozen=True, slots=True)
class Belief:
    """A current fact of a speaker, or a recent statement: a possible reference of a correction or an ending."""

    subject: str
    predicate: str
    object: str


class RuleExtractor:
    """Claims by forms of words over single sentences, in English, German, Spanish and French.

    Whether a form applies, and to which object, is decided by the words of the turn alone. What is believed decides
    which predicate a correction or "I left Google" is about.
    """

    name = "rules"
    version = "9"
    reads_turns_apart = True

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Claims of the trusted turns; no model is called, so it never fails."""
        beliefs = [Belief(fact.subject, fact.predicate, fact.object) for fact in request.known if fact.valid_to is None]
        claims: list[Assertion] = []
        reasons = {}
        lacks_reference = False
        for turn in request.turns:
            if not turn.trusted:
                continue
            found, is_open = await read_turn(turn, beliefs)
            lacks_reference = lacks_reference or is_open
            claims += found
            beliefs = after(beliefs, found)
            if not found and (language := unsupported_language(turn.content)) is not None:
                reasons[turn.id] = f"the rules do not support {language}"
        reason = None if claims else NOTHING_FOUND
        usage = Usage(model=f"{self.name}:{self.version}")
        return Extraction(
            claims=tuple(claims), reason_empty=reason, reasons=reasons, usage=usage, lacks_reference=lacks_reference
        )


class Statements(NamedTuple):
    """The statements of a turn. `lacks_reference`: it corrects or ends something else that is not believed."""

    claims: tuple[Assertion, ...] = ()
    lacks_reference: bool = False


async def read_turn(turn: TurnText, beliefs: Sequence[Belief] = ()) -> Statements:
    """The statements of one turn; none of a turn that takes longer than the deadline of the process for texts."""
    if len(turn.content) <= text_process_pool.INLINE_CHARACTERS:
        return _read(turn, beliefs)
    try:
        return await text_process_pool.run(len(turn.content), _read, turn, beliefs)
    except text_process_pool.TextTimeout:
        return Statements()


def claims_in(turn: TurnText, beliefs: Sequence[Belief] = ()) -> tuple[Assertion, ...]:
    """The statements of one turn, sentence by sentence; the first `MAX_CLAIMS`."""
    return _read(turn, beliefs).claims


def _read(turn: TurnText, beliefs: Sequence[Belief]) -> Statements:
    if suspicion(turn.content) or (turn.name and suspicion(turn.name)):
        return Statements()
    sentences = list(_sentences_of(turn, beliefs))
    claims = [claim for sentence in sentences for claim in sentence.claims()]
    last = list(dict.fromkeys(reversed(claims)))[::-1]  # of two places, the one that is stated again is the later one
    return Statements(tuple(last[:MAX_CLAIMS]), any(sentence.lacks_reference for sentence in sentences))


def after(beliefs: Sequence[Belief], claims: Iterable[Assertion]) -> list[Belief]:
    """What is believed once these claims were made, the latest last."""
    known = list(beliefs)
    for claim in claims:
        belief = Belief(claim.subject, predicates.canonical(claim.predicate), claim.object)
        known = [each for each in known if _key(each) != _key(belief)]
        if claim.operation is Operation.ASSERT and claim.valid_to is None:
            known.append(belief)
    return known


def unsupported_language(text: str) -> str | None:
    """The English name of the language that the text is evidently in, if there is no grammar for it."""
    language = language_of(text)
    return None if language is None or language in LANGUAGES else language_name(language)


def _sentences_of(turn: TurnText, beliefs: Sequence[Belief]) -> Iterator["_Sentence"]:
    text = _SPACES.sub(" ", turn.content.replace("\u2019", "'"))
    language = language_of(text)
    if language is not None and language not in LANGUAGES:
        return
    grammars = [grammar_of(each) for each in ([language] if language else LANGUAGES)]
    # Quotations first: one may hold a whole sentence, and its end is not the end of the sentence around it.
    plain = _QUOTED.sub(" … ", text)
    for grammar in grammars:
        for sentence in _sentences(plain, grammar):
            if len(sentence) <= MAX_SENTENCE_CHARACTERS:
                yield _Sentence(sentence, turn, grammar, beliefs)


def _sentences(text: str, grammar: Grammar) -> Iterator[str]:
    start = 0
    for found in _BREAK.finditer(text):
        if found.group() == "." and _is_abbreviation(
            text[max(0, start, found.start() - 24) : found.start()], grammar, text, found
        ):
            continue
        sentence = text[start : found.end()].strip()
        greeting = grammar.greeting.match(text[start : found.end() + SELF_INTRODUCTION].lstrip())
        if greeting is not None and greeting.end() > len(sentence):
            continue
        if sentence:
            yield sentence
        start = found.end()
    if sentence := text[start:].strip():
        yield sentence


def _is_abbreviation(before: str, grammar: Grammar, text: str, found: re.Match[str]) -> bool:
    last = _LAST_WORD.search(before)
    word = last.group().lower() if last else ""
    behind = text[found.end() : found.end() + 2].strip()
    if word in grammar.suffixes:
        return behind[:1].islower()
    is_ordinal = word.isdigit() and len(word) <= 2 and grammar.nouns_have_capitals  # "am 3. Mai"
    return word in grammar.titles or is_ordinal or (len(word) == 1 and word.isalpha() and word != "i" and behind != "")


class _Validity(NamedTuple):
    """Times of a statement; `latest` as in `Assertion.latest_at`. `is_lasting`: it is still so at the statement."""

    start: datetime | None = None
    end: datetime | None = None
    latest: datetime | None = None
    is_lasting: bool = False


class _Sentence:
    """One sentence while its claims are found."""

    def __init__(self, sentence: str, turn: TurnText, grammar: Grammar, beliefs: Sequence[Belief]) -> None:
        self._whole, self._turn, self._grammar, self._beliefs = sentence, turn, grammar, beliefs
        self._taken: list[tuple[int, int, str]] = []
        self.lacks_reference = False
        self._text = self._with_subjects(self._statement())
        letters = [each for each in self._text if each.isalpha()]
        self._is_uncased = not any(map(str.isupper, letters)) or not any(map(str.islower, letters))

    def claims(self) -> list[Assertion]:
        found: list[_Placed] = []
        for rule, match in self._matches():
            found += [_Placed(match, self._is_past(match), each) for each in self._claims_of(rule, match)]
        return [self._until_the_next(each, found) for each in found]

    def _matches(self) -> Iterator[tuple[FormRule, re.Match[str]]]:
        text, grammar = self._text, self._grammar
        is_impersonal = grammar.first_person.isdisjoint(re.split(r"[^\w'-]+", text.lower()))
        for rule in grammar.rules:
            if is_impersonal and not rule.is_believed:
                continue
            if rule.needs is not None and not rule.needs.search(text):
                continue
            place = 0
            while (match := rule.pattern.search(text, place)) is not None:
                place = match.start() + 1  # the object of a form may reach over another one
                if self._is_free(match, rule) and self._is_said(match):
                    yield rule, match

    def _statement(self) -> str:
        """The sentence without a question that it ends in; nothing where it is a question, or of another speaker."""
        if self._grammar.attributed.search(self._whole):
            return ""
        if not self._whole.rstrip().endswith("?"):
            return self._whole
        places = list(_TAIL.finditer(self._whole.rstrip(" ?")))
        if not places or not self._grammar.questions.match(self._whole[places[-1].end() :]):
            return ""
        return self._whole[: places[-1].start()]

    def _with_subjects(self, text: str) -> str:
        """The sentence with the subject that a second verb shares: "I live in Oslo and work at Acme"."""
        for elision in self._grammar.elisions:
            place = 0
            while (found := elision.pattern.search(text, place)) is not None:
                before, place = text[: found.end()], found.end()
                if elision.needs.search(before, 0, found.start()) and not elision.unless.search(
                    before, 0, found.start()
                ):
                    text = f"{before}{elision.subject} {text[found.end() :]}"
                    place += len(elision.subject) + 1
        return text

    def _is_free(self, match: re.Match[str], rule: FormRule) -> bool:
        return not any(
            start <= match.start() < end and {predicate, rule.predicate} not in _TOGETHER
            for start, end, predicate in self._taken
        )

    def _is_said(self, match: re.Match[str]) -> bool:
        """Whether a clause begins here that its speaker means: no wish, condition, quotation or relative clause."""
        before = self._text[: match.start()].rstrip()
        if not before:
            return True
        if self._grammar.unreal.search(before) or self._grammar.reported.search(before):
            return False
        if before[-1] in _BOUNDARY or not before[-1].isalnum():
            return True
        if match.group().split(maxsplit=1)[0].lower() in self._grammar.conjunctions:
            return True
        last = before.rsplit(maxsplit=1)[-1].lower()
        return last in self._grammar.openers or last.isdigit()

    def _claims_of(self, rule: FormRule, match: re.Match[str]) -> Iterator[Assertion]:
        if self._grammar.unreal.search(match.group()[: match.start("o") - match.start()]):
            return
        objects, end = objects_in(match["o"], rule, self._grammar, is_uncased=self._is_uncased)
        is_kin = rule.predicate == "kin"
        predicates_of_rule = [self._predicate(rule, match.groupdict())] if is_kin else rule.predicate.split()
        if rule.is_successor and not any(
            self._believed(each, predicates_of_rule) for each in self._names(rule, match["was"])
        ):
            return
        if objects and rule.listed is not None:
            more, end = self._listed(rule.listed, match.start("o"), end)
            objects = [*objects, *more]
        if rule.is_believed:
            believed = [each for each in objects if self._believed(each, predicates_of_rule)]
            self.lacks_reference = self.lacks_reference or len(believed) < len(objects)
            objects = believed
        rest = self._text[match.start("o") + end :]
        is_inner = match.end("o") < match.end()  # more words of the form follow: the object must reach to them
        if not objects or (rule.is_closed and not self._is_closed(rest)) or (is_inner and match["o"][end:].strip(" ,")):
            return
        if rule.effect in (FormEffect.END, FormEffect.NOT) and self._grammar.lessened.match(rest):
            return
        objects = [each.strip(" .,'…") for each in objects]
        self._taken.append((match.start(), match.start("o") + max(end, 1), rule.predicate))
        groups = match.groupdict()
        for found in objects:
            yield from self._claims_about(rule, match, found, groups, rest)
        if status := groups.get("status"):
            times = self._validity(rule, match, rest)
            if times.start is not None:
                yield self._claim("relationship_status", status, valid_from=times.start, latest_at=times.latest)
            yield self._claim("relationship_status", status)
        if denied := groups.get("deny"):
            for each in self._names(rule, denied):
                yield self._claim(rule.predicate, each, operation=Operation.RETRACT)

    def _claims_about(
        self, rule: FormRule, match: re.Match[str], found: str, groups: dict[str, str | None], rest: str
    ) -> Iterator[Assertion]:
        predicate = self._predicate(rule, groups)
        start, end, latest, is_lasting = self._validity(rule, match, rest)
        said_at = self._turn.occurred_at
        match rule.effect:
            case FormEffect.CORRECT:
                yield from self._corrected(found, self._names(rule, groups.get("was") or ""), rule.predicate.split())
            case FormEffect.LEAVE:
                at, names = end or start or said_at, rule.predicate.split()
                known = self._believed(found, names)
                for each in known:
                    yield self._claim(each.predicate, each.object, valid_to=at, latest_at=latest)
                    yield from self._ended_statuses(each.predicate, found, match, at, latest)
                for name in () if known else names:  # what began it may be extracted later
                    yield self._claim(name, found, operation=Operation.END, valid_to=at, latest_at=latest)
            case FormEffect.PAST if self._believed(found, [predicate]):
                pass  # it is true now: "I lived in Oslo in 2015" ends no home in Oslo
            case FormEffect.END | FormEffect.PAST:
                if found:
                    start = start if end else None
                    yield self._claim(predicate, found, valid_from=start, valid_to=end or said_at, latest_at=latest)
                else:
                    yield self._end_of(predicate, "", match, end or said_at, latest)
                yield from self._ended_statuses(predicate, found, match, end or said_at, latest)
            case FormEffect.DENY:
                yield self._claim(predicate, found, operation=Operation.RETRACT)
            case FormEffect.NOT if other := self._variant_of(predicate, found):
                yield self._end_of(predicate, other, match, said_at, None)
            case FormEffect.NOT if self._grammar.ended.search(self._text):
                yield self._claim(predicate, found, valid_to=said_at)
            case FormEffect.NOT:
                yield self._claim(predicate, found, operation=Operation.RETRACT)
            case _:
                for former in self._names(rule, groups.get("was") or ""):
                    left = self._period_in(groups["was"] or "") if rule.is_successor else None
                    at = start or said_at if left is None else left.start
                    yield self._claim(predicate, former, valid_to=at, latest_at=latest if left is None else None)
                if instead := self._grammar.not_instead.match(rest):
                    for wrong in self._names(rule, instead["o"]):
                        yield self._claim(predicate, wrong, operation=Operation.RETRACT)
                yield self._claim(predicate, found, valid_from=start, valid_to=end, latest_at=latest)
                if is_lasting and predicates.cardinality(predicate) is Cardinality.SINGLE:
                    yield self._claim(predicate, found)  # it is true now, too, whatever was in between
                if predicate == "relationship_status":
                    for over in self._grammar.status_ends.get(found.lower(), "").split():
                        yield self._end_of(over, "", match, start or said_at, latest)

    def _is_closed(self, rest: str) -> bool:
        left = rest.strip()
        return (
            not left
            or not left[0].isalnum()
            or bool(self._grammar.stops.match(f" {left}"))
            or (left.split(maxsplit=1)[0].lower() in self._grammar.conjunctions)
        )

    def _listed(self, listed: re.Pattern[str], start: int, end: int) -> tuple[list[str], int]:
        """The things that follow an object of `end` characters, and where the last one ends."""
        found: list[str] = []
        not_first = (self._grammar.clause_starts | self._grammar.not_objects) - self._grammar.articles
        while (item := listed.match(self._text, start + end)) is not None:
            if item["i"].split(maxsplit=1)[0].lower() in not_first:
                break  # "I prefer tea and can't sleep"
            found.append(item["i"])
            end = item.end() - start
        return found, end

    def _names(self, rule: FormRule, text: str) -> list[str]:
        found, _ = objects_in(text, rule, self._grammar, is_uncased=self._is_uncased) if text else ([], 0)
        return [each.strip(" .,'") for each in found[:1]]

    def _believed(self, object_: str, among: Sequence[str]) -> list[Belief]:
        """The latest belief about the speaker and this object, of one of these predicates (`*`: any)."""
        mine = [
            each
            for each in self._beliefs
            if predicates.same_text(each.subject, self._subject)
            and predicates.same_text(each.object, object_)
            and (among == ["*"] or each.predicate in among or each.predicate.partition("_")[0] in among)
        ]
        return mine[-1:]

    def _variant_of(self, predicate: str, found: str) -> str | None:
        """The object that is believed in another form of the word: "Veganerin" of "vegan"."""
        group = self._grammar.variants.get(found.lower(), frozenset()) - {found.lower()}
        known = [each.object for each in self._beliefs if each.predicate == predicate and each.object.lower() in group]
        return known[-1] if known else None

    def _corrected(self, found: str, wrong: Sequence[str], among: Sequence[str]) -> Iterator[Assertion]:
        known = [belief for name in wrong for belief in self._believed(name, among)]
        self.lacks_reference = self.lacks_reference or not known
        for each in known:
            yield self._claim(each.predicate, each.object, operation=Operation.RETRACT)
            yield self._claim(each.predicate, found)

    @property
    def _subject(self) -> str:
        return self._turn.speaker or USER

    def _predicate(self, rule: FormRule, groups: dict[str, str | None]) -> str:
        if rule.predicate == "favorite":
            what = " ".join((groups.get("p") or "").lower().split())
            return f"favorite_{self._grammar.favorites.get(what, what).replace(' ', '_')}"
        return self._grammar.kin[str(groups["kin"]).lower()] if rule.predicate == "kin" else rule.predicate

    def _end_of(
        self, predicate: str, object_: str, match: re.Match[str], at: datetime, latest: datetime | None
    ) -> Assertion:
        """The end of an object, if it is a fact, or of every one ("").

        Its quote, the words of the form, is its only evidence: they do not name the object.
        """
        claim = self._claim(predicate, object_, operation=Operation.END, valid_to=at, latest_at=latest)
        return replace(claim, quote=match.group())

    def _ended_statuses(
        self, predicate: str, found: str, match: re.Match[str], at: datetime, latest: datetime | None
    ) -> Iterator[Assertion]:
        named = set(predicates.folded(found).split())

        def is_other(object_: str) -> bool:
            words = set(predicates.folded(object_).split())
            return not (named <= words or words <= named)

        mine = [each for each in self._beliefs if each.predicate == predicate]
        mine = [each for each in mine if predicates.same_text(each.subject, self._subject)]
        if any(is_other(each.object) for each in mine):
            return  # "My wife Ines died in 2010", and Eva is the spouse now
        for status in self._grammar.ended_statuses.get(predicate, "").split():
            yield self._end_of("relationship_status", status, match, at, latest)

    def _claim(
        self,
        predicate: str,
        object_: str,
        *,
        operation: Operation = Operation.ASSERT,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        latest_at: datetime | None = None,
    ) -> Assertion:
        return Assertion(
            subject=self._subject,
            predicate=predicate,
            object=object_,
            said_at=self._turn.occurred_at,
            operation=operation,
            valid_from=valid_from,
            valid_to=valid_to,
            latest_at=latest_at,
            confidence=0.7,  # a form of words is no understanding
            sources=(self._turn.id,),
            quote=self._whole if self._whole in self._turn.content else None,
        )

    def _around_object(self, match: re.Match[str]) -> str:
        """The words of a form, up to its object where that is at the end: "ich bin vor zwei Jahren nach … gezogen"."""
        is_inner = match.end("o") < match.end()
        return self._text[match.start() : match.end() if is_inner else match.start("o")]

    def _is_past(self, match: re.Match[str]) -> bool:
        return self._grammar.past.search(self._around_object(match)) is not None

    def _until_the_next(self, placed: "_Placed", all_placed: Sequence["_Placed"]) -> Assertion:
        """The claim; a change without a time ends at the next one: "I moved to Rome, then moved to Oslo in 2020"."""
        claim = placed.claim
        is_dated = claim.valid_from is not None or claim.valid_to is not None
        is_single = predicates.cardinality(claim.predicate) is Cardinality.SINGLE
        if is_dated or not placed.is_change or not is_single or claim.operation is not Operation.ASSERT:
            return claim
        for match, is_change, later in all_placed:
            between = self._text[placed.match.start("o") : match.start()]
            is_next = is_change and self._grammar.sequel.search(between) and later.predicate == claim.predicate
            if is_next and later.valid_from is not None:
                return replace(claim, valid_to=later.valid_from, latest_at=later.latest_at)
        return claim

    def _validity(self, rule: FormRule, match: re.Match[str], rest: str) -> _Validity:
        """Start and end, as far as the words state them; an ending never has a start in the future."""
        if rule.is_timeless:
            return _Validity()
        grammar, said_at = self._grammar, self._turn.occurred_at
        start, end = match.start(), len(self._text) - len(rest)
        words = self._clause_around(rule, match, end)
        if rule.is_successor and self._has_own_time(match, second := words.partition(match["was"])[2]):
            words = second
        if grammar.ago.search(self._around_object(match)) or grammar.ago.match(rest.lstrip(" ")):
            words = grammar.ago.sub(lambda found: f"{_duration_in_english(grammar, found)} ago", words)
        words = self._with_english_dates(words)
        ends = rule.effect in (FormEffect.END, FormEffect.LEAVE, FormEffect.PAST)
        if dates.find(_NOW.sub("", words), said_at) is None:
            words = grammar.bare_year.sub(r"in \g<0>", words)
            if ends or self._is_past(match):
                words = grammar.weekday_words.sub(lambda found: grammar.weekdays[found.group().lower()], words)
            elif lasted := self._duration(rule, start, end):
                words = f"since {_duration_in_english(grammar, lasted)} ago"
        if rule.effect is FormEffect.PAST:
            return _past_period(_NOW.sub("", words), said_at)
        return _period(words, said_at, ends=ends)

    def _duration(self, rule: FormRule, start: int, end: int) -> re.Match[str] | None:
        """For how long the statement from `start` to `end` has been true: stated in its form, or directly after it."""
        grammar, stated = self._grammar, self._text[start:end]
        if predicates.is_event(rule.predicate) or not grammar.lasting.search(stated):
            return None
        return grammar.duration.search(stated) or grammar.duration.match(self._text[end:].lstrip(" "))

    def _with_english_dates(self, words: str) -> str:
        grammar = self._grammar
        if not grammar.dates:
            return words
        return grammar.date_words.sub(lambda found: grammar.dates[found.group().lower()], words)

    def _period_in(self, words: str) -> dates.Period | None:
        return dates.find(self._with_english_dates(words), self._turn.occurred_at)

    def _has_own_time(self, match: re.Match[str], second: str) -> bool:
        """Whether the words about a successor have a time that can be the start, after that of "I left Acme in May"."""
        left, joined = self._period_in(match["was"]), self._period_in(second)
        if left is None or joined is None:
            return joined is not None
        has_year = [_YEAR.search(words) is not None for words in (match["was"], second)]
        return joined.start >= left.start and has_year != [True, False]

    def _clause_around(self, rule: FormRule, match: re.Match[str], end: int) -> str:
        """The words that may date the part from the form to `end`: up to the next clause. What is past may share the
        time of a second verb: "I moved to Oslo and started at Acme in 2015".

        They start at the clause of the part, unless the sentence starts with a time or a subordinate clause: "I have
        lived in Oslo since 2015 and I have a dog" dates no dog, "After I left Oslo in 2015, I joined Acme" dates Acme.
        """
        text, grammar = self._text, self._grammar
        is_past = self._is_past(match) or predicates.is_event(rule.predicate) or rule.effect is FormEffect.PAST
        is_over = rule.effect in (FormEffect.END, FormEffect.LEAVE)
        continued = grammar.continued.get("ended" if is_over else rule.predicate)
        start, after = match.start(), max(end, match.end()) if match.end("o") < match.end() else end
        ends = (
            each.start()
            for each in grammar.main_clause.finditer(text, after)
            if not (is_past and each["second"]) and not (continued is not None and continued.match(text, each.start()))
        )
        stop = next(ends, None)
        first = max((taken for _, taken, _ in self._taken[:-1] if taken <= start), default=0)
        if self._starts_with_main_clause():
            joined = (found.start() for found in grammar.main_clause.finditer(text, first) if found["joined"])
            first = max((place for place in joined if place < start), default=first)
        return text[first:after] + self._without_other_clauses(text[after:stop])

    def _without_other_clauses(self, words: str) -> str:
        """The words without other clauses, whose times are not of the part; after a relative clause between commas the
        part continues: "I moved to Paris, where my sister lives, in 2018"."""
        place = 0
        while (clause := self._grammar.other_clause.search(words, place)) is not None:
            comma = words.find(",", clause.end()) if clause["relative"] else -1
            if comma < 0:
                return words[: clause.start()]
            place = clause.start() + 1
            words = words[: clause.start()] + words[comma:]
        return words

    def _starts_with_main_clause(self) -> bool:
        subject = self._grammar.first_person_word.search(self._text)
        before = self._text[: subject.start()] if subject else self._text
        return not self._grammar.stops.search(before) and dates.find(before, self._turn.occurred_at) is None


class _Placed(NamedTuple):
    """A claim, its form in the sentence, and whether the form is of a change: "I moved to"."""

    match: re.Match[str]
    is_change: bool
    claim: Assertion


def _duration_in_english(grammar: Grammar, duration: re.Match[str]) -> str:
    count, unit = (grammar.durations.get(word := duration[name].lower(), word) for name in ("count", "unit"))
    return f"{count} {unit}s"


def _period(words: str, said_at: datetime, *, ends: bool) -> _Validity:
    if span := re.search(
        r"\b(?:from\b(.*?)\b(?:to|until|till)|since\b(.*?)\b(?:until|till))\b(.*)", words, re.IGNORECASE
    ):
        began, ended = dates.find(span[1] or span[2] or "", said_at), dates.find(span[3], said_at)
        if began and ended and began.start < ended.end <= said_at:
            return _Validity(began.start, ended.end)
    period = dates.find(words, said_at)
    if re.search(r"\b(?:until|till)\b", words, re.IGNORECASE) and period and period.start <= said_at:
        return _Validity(None, min(period.end, said_at))
    if period is None or period.start > said_at:
        return _Validity(None, said_at if ends else None)
    latest = min(period.end - timedelta(microseconds=1), said_at)
    if ends:
        return _Validity(None, period.start, latest)
    return _Validity(period.start, None, latest, _SINCE.search(words) is not None)


def _past_period(words: str, said_at: datetime) -> _Validity:
    """What was so once: in the period that is named, up to the time that is, or at any time before the message."""
    if _AT_AN_EDGE.search(words) is not None:
        found = _period(words, said_at, ends=True)
        is_end = re.search(r"\b(?:until|till|before|to)\b", words, re.IGNORECASE) is not None
        return found if is_end and found.end is not None else _Validity(None, said_at)
    period = dates.find(words, said_at)
    if period is None or period.start >= said_at:
        return _Validity(None, said_at)
    return _Validity(period.start, min(period.end, said_at))


def _key(belief: Belief) -> tuple[str, str, str]:
    return predicates.folded(belief.subject), belief.predicate, predicates.folded(belief.object)
