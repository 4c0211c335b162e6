"""The object of a form: which of the words behind it are meant."""

import re
from dataclasses import dataclass

from aftermind.llm.offline.grammar import FormRule, Grammar, ObjectKind

MAX_NAME_WORDS = 5
MAX_UNCASED_WORDS = 3
MAX_THING_WORDS = 6
MAX_LISTED_WORDS = 3  # of an object between commas
MAX_VERB_WORDS = 9
MAX_ITEMS = 12

_TOKEN = re.compile(r"[,;()…]|:(?=\s|$)|[\u2013\u2014-](?=\s)|[^\s,;:()…]+(?::[^\s,;:()…]+){0,3}")
_DATE_TOKEN = re.compile(r"\d{1,4}(?:st|nd|rd|th|er|\.)?|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}", re.IGNORECASE)
_SEPARATORS = frozenset(",;:()…\u2013\u2014-")
_ORGANISATIONS = frozenset({"works_at", "attends"})
_AFTER_NAMES = frozenset({"in", "on", "at", "as", "since", "for", "from", "now", "and", "but", "or", "because", "with"})
_AND_NAMES = frozenset(
    {
        *("bosnia and herzegovina", "trinidad and tobago", "antigua and barbuda", "newfoundland and labrador"),
        *("turks and caicos", "tyne and wear", "dumfries and galloway", "brighton and hove", "barnes and noble"),
        *("ernst and young", "procter and gamble", "marks and spencer"),
    }
)
_BODIES_OF = frozenset({"bureau", "department", "faculty", "ministry", "museum", "office", "school"})  # "of X and Y"
_COLLECTIONS = frozenset({"centre", "center", "gallery", "institute", "library", "museum"})  # "X and Y Museum"
_BODIES = _BODIES_OF | _COLLECTIONS | {"academy", "college", "university"}
_ENDS = "?!\"'“”«»*"


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int

    @property
    def low(self) -> str:
        return self.text.lower()


def objects_in(rest: str, rule: FormRule, grammar: Grammar, *, is_uncased: bool) -> tuple[list[str], int]:
    """The objects at the beginning of the text, and where they end in it; none where it begins with something else."""
    if rule.kind is ObjectKind.SAME:
        return [rest.strip()], len(rest)
    if rule.kind is ObjectKind.DATE:
        return _date(_tokens(rest, grammar), rest, grammar)
    cut = _cut(rest, rule, grammar)
    if rule.is_taste and grammar.verbs.match(rest, cut):
        return [], 0  # the words are the subject of another clause: "making sure veterans are supported"
    tokens = _tokens(rest[:cut], grammar)
    if rule.kind in (ObjectKind.NAME, ObjectKind.NAMES):
        if rule.is_cased and is_uncased:
            return [], 0
        many, joins = rule.kind is ObjectKind.NAMES, rule.predicate in _ORGANISATIONS
        return _names(tokens, rest, grammar, many=many, joins=joins, is_uncased=is_uncased)
    if rule.kind is ObjectKind.VERB:
        return _verb(tokens, rest, grammar)
    return _things(tokens, rest, grammar, rule)


def _cut(rest: str, rule: FormRule, grammar: Grammar) -> int:
    patterns = [grammar.stops] if rule.stops is None else [grammar.stops, rule.stops]
    found = [match.start() for stops in patterns if (match := stops.search(rest)) is not None]
    # A name may begin with a word that ends a thing: "La Paz", "Last Chance".
    return min([place for place in found if place or not rest[:1].isupper()], default=len(rest))


def _tokens(text: str, grammar: Grammar) -> list[_Token]:
    tokens = []
    for found in _TOKEN.finditer(text):
        start, word = found.start(), found.group()
        lead = len(word) - len(word.lstrip(_ENDS))
        word = word[lead:].rstrip(_ENDS)
        if (
            word.endswith(".")
            and word[:-1].lower() not in grammar.titles | grammar.suffixes
            and not word[:-1].isdigit()
        ):
            word = word.rstrip(".")
        if word:
            tokens.append(_Token(word, start + lead, start + lead + len(word)))
    return tokens


def _names(
    tokens: list[_Token], rest: str, grammar: Grammar, *, many: bool, joins: bool, is_uncased: bool
) -> tuple[list[str], int]:
    found: list[str] = []
    place = end = 0
    while place < len(tokens) and len(found) < MAX_ITEMS:
        first = place
        if not is_uncased and tokens[place].low in grammar.name_articles and _is_name(tokens, place + 1, grammar):
            place += 1
            first += tokens[first].text != "The"  # "The Hague", which is compared without it, but "the Netherlands"
        last = _name_end(tokens, place, grammar, is_uncased=is_uncased)
        if last == place:
            break
        if not many:
            last = _joined_end(tokens, place, last, grammar, joins=joins)
        found.append(rest[tokens[first].start : tokens[last - 1].end])
        place, end = last, tokens[last - 1].end
        if not many:
            break
        while place < len(tokens) and (tokens[place].text == "," or tokens[place].low in grammar.conjunctions):
            place += 1
    return found, end


def _name_end(tokens: list[_Token], place: int, grammar: Grammar, *, is_uncased: bool) -> int:
    start = place
    if is_uncased:
        while place < len(tokens) and place - start < MAX_UNCASED_WORDS and _is_word(tokens[place]):
            if tokens[place].low in grammar.not_names | grammar.conjunctions:
                break
            place += 1
        return place
    while place < len(tokens) and place - start < MAX_NAME_WORDS:
        if _is_name(tokens, place, grammar) if place == start else _goes_on(tokens[place], grammar):
            place += 1
        elif place > start and tokens[place].low in grammar.connectors and _is_name(tokens, place + 1, grammar):
            if tokens[place].low in ("in", "on"):
                break
            place += 2
        else:
            break
    return place


def _joined_end(tokens: list[_Token], start: int, end: int, grammar: Grammar, *, joins: bool) -> int:
    """The end of a name that continues behind "and", as those of `_AND_NAMES`, or of an organisation behind "&".

    "I work at Globex & Tom works at Acme" has two clauses: a verb follows.
    """
    if end + 1 >= len(tokens):
        return end
    joint, then = tokens[end], tokens[end + 1]
    whole = " ".join(token.low for token in tokens[start : end + 2])
    repeats = (joint.low, then.low) == ("and", tokens[start].low)  # "Johnson and Johnson"
    first = end + 2 if then.low in grammar.connectors else end + 1
    if not _is_name(tokens, first, grammar):
        return end
    last = _name_end(tokens, first, grammar, is_uncased=False)
    # "the Science and Industry Museum", "the Museum of Science and Industry": one name, with its article
    has_article = start > 0 and tokens[start - 1].low in grammar.name_articles
    is_body = has_article and (
        (tokens[last - 1].low in _COLLECTIONS and _BODIES.isdisjoint(token.low for token in tokens[start:end]))
        or (
            tokens[start].low in _BODIES_OF
            and "of" in {token.low for token in tokens[start:end]}
            and _BODIES.isdisjoint(token.low for token in tokens[end + 1 : last])
        )
    )
    is_body = is_body and joint.low == "and" and then.text != "the"
    is_joined = whole in _AND_NAMES or (joins and (joint.text == "&" or repeats or is_body))
    if not is_joined:
        return end
    is_clause = last < len(tokens) and tokens[last].text.islower() and tokens[last].low not in _AFTER_NAMES
    return end if is_clause else last


def _is_name(tokens: list[_Token], place: int, grammar: Grammar) -> bool:
    if place >= len(tokens) or tokens[place].low.rstrip(".") in grammar.not_names:
        return False
    return _is_capital(tokens[place])


def _goes_on(token: _Token, grammar: Grammar) -> bool:
    return _is_capital(token) and token.low not in grammar.openers | grammar.first_person


def _is_capital(token: _Token) -> bool:
    first = token.text[0]
    return first.isalpha() and first == first.upper() and not first.islower()


def _is_word(token: _Token) -> bool:
    return token.text[0].isalpha()


def _date(tokens: list[_Token], rest: str, grammar: Grammar) -> tuple[list[str], int]:
    place = 0
    months = {word for word, english in grammar.dates.items() if english in _MONTHS} or _MONTHS
    while place < min(len(tokens), 7):
        low = tokens[place].low.rstrip(".")
        is_part = low in months or low in _DATE_FILLERS or _DATE_TOKEN.fullmatch(tokens[place].text)
        if not is_part:
            break
        place += 1
    while place and tokens[place - 1].low in _DATE_FILLERS:
        place -= 1
    said = [token.low for token in tokens[:place]]
    if not any(word in months or any(each.isdigit() for each in word) for word in said):
        return [], 0
    return [rest[tokens[0].start : tokens[place - 1].end]], tokens[place - 1].end


_MONTHS = frozenset(
    {
        *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
        *("november", "december", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    }
)
_DATE_FILLERS = frozenset({"of", "the", ",", "de", "del", "den", "der", "le", "el"})


def _verb(tokens: list[_Token], rest: str, grammar: Grammar) -> tuple[list[str], int]:
    place = 0
    while place < len(tokens) and (_is_word(tokens[place]) or tokens[place].text[0].isdigit()):
        if tokens[place].low in grammar.conjunctions:
            break
        place += 1
    if not place or place > MAX_VERB_WORDS or tokens[0].low in grammar.not_objects | grammar.adjectives:
        return [], 0
    return [rest[tokens[0].start : tokens[place - 1].end]], tokens[place - 1].end


def _things(tokens: list[_Token], rest: str, grammar: Grammar, rule: FormRule) -> tuple[list[str], int]:
    many = rule.kind is ObjectKind.THINGS
    found: list[list[_Token]] = []
    held: list[list[_Token]] = []  # between commas: objects only if the list continues
    place = 0
    separator = ""
    while place < len(tokens) and len(found) + len(held) < MAX_ITEMS:
        item, after = _segment(tokens, place, grammar)
        item = _without_article(item, grammar)
        is_first = not separator
        if separator == "and" and item and item[0].low in grammar.first_person & grammar.articles:
            found += held  # "hiking, reading and my new bike": the list has ended, and is one
            held = []
            break
        if not _is_thing(item, grammar, rule, is_first=is_first):
            break
        if not is_first and not _may_follow(item, found[0], grammar):
            break
        if rule.is_taste and after == len(tokens) and grammar.relative.match(rest, item[-1].end):
            break
        if is_first or separator == "and":
            found += [*held, item]
            held = []
        elif len(item) <= MAX_LISTED_WORDS:
            held.append(item)
        else:
            break
        if not many:
            break
        place, separator = after, ""
        while place < len(tokens) and (tokens[place].text == "," or tokens[place].low in grammar.conjunctions):
            separator = "and" if tokens[place].low in grammar.conjunctions else separator or ","
            place += 1
        if not separator:
            break
    if held and len(found) + len(held) >= 3 and place >= len(tokens):
        found += held
    if not found:
        return [], 0
    return [rest[item[0].start : item[-1].end] for item in found], found[-1][-1].end


def _without_article(item: list[_Token], grammar: Grammar) -> list[_Token]:
    """The words of a thing without the article and preposition that each thing of a list repeats: "et aux noix"."""
    while len(item) > 1 and item[0].low in grammar.item_articles:
        item = item[1:]
    if item and (found := grammar.item_prefix.match(item[0].text)) and found.end() < len(item[0].text):
        first = item[0]
        item = [_Token(first.text[found.end() :], first.start + found.end(), first.end), *item[1:]]
    return item


def _may_follow(item: list[_Token], first: list[_Token], grammar: Grammar) -> bool:
    """Whether an item continues the list of the first one, instead of describing the first one.

    "improving education and infrastructure", "books about personal growth and mindset".
    """
    is_phrase = len(first) > 2 and not grammar.prepositions.isdisjoint(word.low for word in first)
    is_activity = len(first) > 1 and bool(grammar.gerund.fullmatch(first[0].low))
    return not (is_phrase or is_activity) or bool(grammar.gerund.fullmatch(item[0].low))


def _segment(tokens: list[_Token], place: int, grammar: Grammar) -> tuple[list[_Token], int]:
    start = place
    while (
        place < len(tokens) and tokens[place].text not in _SEPARATORS and tokens[place].low not in grammar.conjunctions
    ):
        place += 1
    return tokens[start:place], place


def _is_thing(item: list[_Token], grammar: Grammar, rule: FormRule, *, is_first: bool) -> bool:
    words = item
    if words and rule.infinitive and words[0].low == rule.infinitive:
        words = words[1:]
        if words and words[0].low in grammar.vague_verbs:
            return False
    elif not is_first and words and words[0].low in grammar.clause_starts:
        return False
    if not 0 < len(words) <= MAX_THING_WORDS:
        return False
    last = words[-1].low
    if not grammar.anaphora.isdisjoint(word.low for word in words) or last in grammar.not_objects | grammar.articles:
        return False
    if len(words) > 1 and words[-2].low in grammar.articles and last in grammar.adjectives:
        return False  # "creating a safe, inviting place"
    first = words[0].low
    is_definite = rule.is_taste and first in grammar.definite and len(words) > 1
    if is_definite and words[1].low not in grammar.generic and not _is_capital(words[1]):
        return False  # "I love the color" is about something at hand
    if first in grammar.articles:
        if len(words) == 1:
            return False
        first = words[1].low if words[1].low in grammar.not_objects else words[0].low
    if first in grammar.not_objects and first not in grammar.articles:
        return False
    return not all(word.low in grammar.adjectives or word.low in grammar.not_objects for word in words)
