"""Tables of a language from `grammars/`: forms of words for each predicate, and words that delimit them.

A form is a regular expression, matched case-insensitively at the start of a clause. `{NAME}` is a macro of the table.
`{o}` is the object, `{was}` the object that it replaces, `{deny}` a denied one. At the end of a form `{o}` is the rest
of the clause, of which `object_phrase` takes the part that the kind of object allows; of two kinds ("name thing") the
first that fits. With `object = "same"` the form itself captures the object as `(?P<o>…)`; an empty one of a form that
ends is every object of the predicate. A correction changes a fact of one of the rule's predicates
(`*`: of any). `p` names a favorite, `kin` a relative, `status` a relationship.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

LANGUAGES = ("en", "de", "es", "fr")  # ISO 639-1; one table each
_INNER = r"[^;!?]{1,60}?"  # an object that has more words of the form behind it
_MACRO = re.compile(r"\{([A-Za-z]+)\}")


class FormEffect(StrEnum):
    """Effect of a form on its object."""

    ASSERT = "assert"
    END = "end"  # it is over
    PAST = "past"  # it was so once: in the time that the words name, or at any before the message
    DENY = "deny"  # it never was
    NOT = "not"  # ended if a word like "anymore" is present, else it never was
    LEAVE = "leave"  # over, for the first of several predicates that is believed of the object
    CORRECT = "correct"  # the latest statement about `was` is true of the object instead


class ObjectKind(StrEnum):
    """Which part of the words behind a form is its object."""

    NAME = "name"
    NAMES = "names"
    THING = "thing"
    THINGS = "things"
    VERB = "verb"
    DATE = "date"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRule:
    """One form for a predicate."""

    pattern: re.Pattern[str]
    predicate: str
    kind: ObjectKind
    effect: FormEffect
    needs: re.Pattern[str] | None
    stops: re.Pattern[str] | None
    infinitive: str
    listed: re.Pattern[str] | None  # a further thing `i`, directly after the last: "and a boat", not "and a boat trip"
    is_timeless: bool
    is_cased: bool  # only where the object has a capital letter and the writer uses them
    is_taste: bool  # of kinds of things: "the color" and what a relative clause narrows down are not meant
    is_closed: bool  # only where nothing but punctuation or a stop follows the object
    is_successor: bool  # only where `was` is believed: "I left Acme and joined Hooli"
    is_believed: bool  # only of an object that is believed; the sentence needs no first person then ("Miso died")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elision:
    """A subject that a second clause leaves out: "and work at Acme", "and allergic to nuts"."""

    pattern: re.Pattern[str]  # the conjunction before its verb or state
    subject: str
    needs: re.Pattern[str]  # before it
    unless: re.Pattern[str]  # before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A language: its rules, and the words that bound clauses and objects. All words are in lower case."""

    language: str
    rules: tuple[FormRule, ...]
    first_person: frozenset[str]
    conjunctions: frozenset[str]
    articles: frozenset[str]
    item_articles: frozenset[str]
    item_prefix: re.Pattern[str]
    name_articles: frozenset[str]
    definite: frozenset[str]
    generic: frozenset[str]
    vague_verbs: frozenset[str]
    prepositions: frozenset[str]
    anaphora: frozenset[str]
    connectors: frozenset[str]
    titles: frozenset[str]
    suffixes: frozenset[str]
    openers: frozenset[str]
    clause_starts: frozenset[str]
    not_objects: frozenset[str]
    adjectives: frozenset[str]
    not_names: frozenset[str]
    kin: Mapping[str, str]
    variants: Mapping[str, frozenset[str]]  # of a word, with it: what ends one ends the others
    favorites: Mapping[str, str]
    status_ends: Mapping[str, str]  # by a status of a relationship, the predicates that it ends
    ended_statuses: Mapping[str, str]  # by such a predicate, the statuses that end with it
    dates: Mapping[str, str]
    date_words: re.Pattern[str]
    durations: Mapping[str, str]  # words of a duration, in English
    duration: re.Pattern[str]  # of what is still true: `count` and `unit` ("for two years")
    lasting: re.Pattern[str]  # in the form before it
    ago: re.Pattern[str]  # a time by its distance, with `count` and `unit`: "vor zwei Jahren"
    weekdays: Mapping[str, str]  # of past forms, where the clause has no other time: "on Friday" is the last one
    weekday_words: re.Pattern[str]
    past: re.Pattern[str]
    unreal: re.Pattern[str]
    reported: re.Pattern[str]
    attributed: re.Pattern[str]  # at the end of a sentence: it is of another speaker (", he said")
    questions: re.Pattern[str]
    ended: re.Pattern[str]
    lessened: re.Pattern[str]  # behind an object that has not ended: "I don't speak Dutch much anymore"
    stops: re.Pattern[str]
    elisions: tuple[Elision, ...]
    relative: re.Pattern[str]
    gerund: re.Pattern[str]
    verbs: re.Pattern[str]
    not_instead: re.Pattern[str]
    nouns_have_capitals: bool
    greeting: re.Pattern[str]  # that belongs to the sentence behind it ("Hi! I'm Ana.")
    sequel: re.Pattern[str]  # at the end of what is before a clause: it is later than the one before it
    main_clause: re.Pattern[str]  # where a clause starts; `joined` by a comma or conjunction, `second` with no subject
    other_clause: re.Pattern[str]  # where one of something else starts; `relative`: after a comma, up to the next one
    continued: Mapping[
        str, re.Pattern[str]
    ]  # by predicate: a second verb that is about the same fact ("and started there")
    first_person_word: re.Pattern[str]
    bare_year: re.Pattern[str]  # a year without a preposition, dates in English: "Ich bin 2024 nach Bremen gezogen"


@cache
def grammar_of(language: str) -> Grammar:
    """The compiled table of one of `LANGUAGES`."""
    path = files("aftermind.llm.offline") / "grammars" / f"{language}.toml"
    data: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    macros: dict[str, str] = {}
    for name, text in data["macros"].items():
        macros[name] = _expanded(text, macros)
    conjunctions = _words(data["conjunctions"])
    either = _alternation(conjunctions)
    patterns: dict[str, Any] = {name: _pattern(data[name]) for name in ("unreal", "reported", "questions", "ended")}
    words: dict[str, Any] = {
        name: _words(data[name])
        for name in (
            *(
                "first_person",
                "articles",
                "connectors",
                "titles",
                "suffixes",
                "openers",
                "clause_starts",
                "not_objects",
            ),
            *(
                "adjectives",
                "not_names",
                "vague_verbs",
                "prepositions",
                "item_articles",
                "name_articles",
                "definite",
                "generic",
            ),
            "anaphora",
        )
    }
    return Grammar(
        language=language,
        rules=tuple(rule for each in data["rules"] for rule in _rules(each, macros, either)),
        kin=data.get("kin", {}),
        variants=_variants(data.get("variants", {})),
        favorites=data.get("favorites", {}),
        status_ends=data["status_ends"],
        ended_statuses=data["ended_statuses"],
        dates=data.get("dates", {}),
        date_words=re.compile(_alternatives(data.get("dates", {}) or {"\x00": ""}), re.IGNORECASE),
        durations=data["durations"],
        duration=_pattern(data["durations"]["form"]),
        lasting=_pattern(data["durations"].get("needs", "")),
        ago=_pattern(data["durations"].get("ago", "(?!)")),
        weekdays=data["weekdays"],
        weekday_words=re.compile(_alternatives(data["weekdays"]), re.IGNORECASE),
        past=_pattern(data["past"]),
        conjunctions=conjunctions,
        elisions=tuple(_elision(each, macros, rf"{either}|{data['contrast']}") for each in data["elisions"]),
        relative=re.compile(rf"\s*(?:{data['relative']})\b", re.IGNORECASE),
        item_prefix=_pattern(data.get("item_prefix", "(?!)")),
        verbs=_stops(data.get("verbs", "(?!)")),
        gerund=_pattern(data.get("gerund", "(?!)")),
        not_instead=re.compile(
            rf"(?: now)? ?,? ?(?:(?:{either}) )?{data['negation']} "
            rf"(?:(?:{'|'.join(data['negation_prepositions'].split())}) )?"
            r"(?P<o>[^,;:]{1,60})",
            re.IGNORECASE,
        ),
        stops=_stops(f"{data['stops']}|{_second_clause(data)}"),
        nouns_have_capitals=data.get("nouns_have_capitals", False),
        lessened=_pattern(data.get("lessened", "(?!)")),
        greeting=_pattern(_expanded(data.get("greeting", "(?!)"), macros)),
        attributed=_pattern(data.get("attributed", "(?!)")),
        sequel=_pattern(rf"(?:{data['sequel']}) *$"),
        main_clause=_main_clause(data, words["first_person"], words["articles"]),
        other_clause=_pattern(rf"(?P<relative>, (?:{data['relatives']})(?!\w))|,? (?:{data['other_clauses']})(?!\w)"),
        continued={
            name: _pattern(rf"[,;]? \S+ (?:{_expanded(text, macros)})(?![\w'])")
            for names, text in data.get("continued", {}).items()
            for name in names.split()
        },
        first_person_word=re.compile(rf"(?<![\w'])(?:{_alternation(words['first_person'])})(?![\w'])", re.IGNORECASE),
        bare_year=_pattern(data.get("bare_year", "(?!)")),
        **patterns,
        **words,
    )


def _elision(data: Mapping[str, str], macros: Mapping[str, str], joint: str) -> Elision:
    joint, following = data.get("conjunctions", joint), _expanded(data["verbs"], macros)
    return Elision(
        pattern=re.compile(rf"\b((?:{joint}) )(?={following}\b)", re.IGNORECASE),
        subject=data["subject"],
        needs=_pattern(_expanded(data["needs"], macros)),
        unless=_pattern(_expanded(data.get("unless", "(?!)"), macros)),
    )


def _rules(data: Mapping[str, Any], macros: Mapping[str, str], either: str) -> Sequence[FormRule]:
    return [
        FormRule(
            pattern=_form(form, macros),
            predicate=data["predicate"],
            kind=kind,
            effect=FormEffect(data.get("effect", "assert")),
            needs=re.compile(_expanded(data["needs"], macros), re.IGNORECASE) if "needs" in data else None,
            stops=_stops(data["stops"]) if "stops" in data else None,
            infinitive=data.get("infinitive", ""),
            listed=_listed(_expanded(data["listed"], macros), either) if "listed" in data else None,
            is_timeless=data.get("timeless", False),
            is_cased=data.get("cased", False),
            is_taste=data.get("is_taste", False),
            is_closed=data.get("closed", False),
            is_successor=data.get("succeeds", False),
            is_believed=data.get("believed", False),
        )
        for kind in map(ObjectKind, data["object"].split())
        for form in data["forms"]
    ]


def _listed(item: str, either: str) -> re.Pattern[str]:
    return re.compile(rf"(?:,? (?:{either}) |, ){item}(?= *(?:$|[.,;!?)]| (?:{either})(?!\w)))", re.IGNORECASE)


def _form(form: str, macros: Mapping[str, str]) -> re.Pattern[str]:
    text = _expanded(form, macros)
    for name in ("was", "deny", "o"):
        mark = f"{{{name}}}"
        if text.endswith(mark):
            text = text.removesuffix(mark) + f"(?P<{name}>.+)"
        text = text.replace(mark, f"(?P<{name}>{_INNER})")
    return re.compile(rf"(?<!\w)(?<!\w['-]){text}", re.IGNORECASE)


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    return _MACRO.sub(lambda found: macros.get(found[1], found[0]), text)


def _variants(listed: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    groups = [frozenset({word, *others.split()}) for word, others in listed.items()]
    return {word: group for group in groups for word in group}


def _stops(listed: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|\s)(?:{_joined(listed)})(?![\w'-])", re.IGNORECASE)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(_joined(text), re.IGNORECASE)


def _joined(text: str) -> str:
    """A pattern over several lines of a table, in one."""
    return text.replace("\n", "")


def _main_clause(data: Mapping[str, Any], first_person: frozenset[str], articles: frozenset[str]) -> re.Pattern[str]:
    """Where a clause of the first person starts: "and I", "and in 2015 I", "and my", ", then I", " I", "and worked"."""
    conjunction = f"[,;]? (?:{_alternation([*_words(data['conjunctions']), data['contrast']])}) "
    subject, possessive = _alternation(first_person - articles), _alternation(first_person & articles)
    joined = (
        rf"{conjunction}(?:(?:{possessive})|(?:[\w'-]+ ){{0,3}}?(?:{subject}))|[,;] (?:[^\W\d]{{1,9}} )?(?:{subject})"
    )
    joined = rf"{joined}|[,;]? (?P<second>{_second_clause(data)})"
    aside = rf"[,;]? (?:{data['asides']})(?!\w)"
    return re.compile(rf"(?!{aside})(?:(?P<joined>{joined})| (?:{subject}))(?![\w'])", re.IGNORECASE)


def _second_clause(data: Mapping[str, Any]) -> str:
    """A conjunction and the verb of a clause that shares its subject: "and worked at Asda until 2020"."""
    joint = _alternation([*_words(data["conjunctions"]), data["contrast"]])
    return rf"(?:{joint}) (?:{_joined(data['second_verbs'])})"


def _alternation(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _alternatives(words: Mapping[str, str]) -> str:
    return rf"(?<!\w)(?:{_alternation(words)})(?!\w)"


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())
