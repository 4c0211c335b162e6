"""One name for each predicate, and whether a subject can have several objects of it at a time."""

import re
from collections.abc import Mapping
from functools import lru_cache

from aftermind.types import Cardinality, Fact

# Several wordings of one relation. Left: how people and models put it; right: the name that is stored.
_SYNONYMS: Mapping[str, str] = {
    "lives_at": "lives_in",
    "living_in": "lives_in",
    "lived_in": "lives_in",
    "moved_to": "lives_in",
    "resides_in": "lives_in",
    "home_city": "lives_in",
    "located_in": "lives_in",
    "based_in": "lives_in",
    "works_for": "works_at",
    "worked_at": "works_at",
    "employed_by": "works_at",
    "employer": "works_at",
    "works_as": "has_job",
    "occupation": "has_job",
    "profession": "has_job",
    "job_title": "has_job",
    "job": "has_job",
    "name_is": "name",
    "is_named": "name",
    "is_called": "name",
    "named": "name",
    "has_name": "name",
    "loves": "likes",
    "enjoys": "likes",
    "is_fond_of": "likes",
    "fan_of": "likes",
    "hates": "dislikes",
    "does_not_like": "dislikes",
    "is_allergic_to": "allergic_to",
    "allergy": "allergic_to",
    "married_to": "spouse",
    "is_married_to": "spouse",
    "wife": "spouse",
    "husband": "spouse",
    "born_on": "birthday",
    "birth_date": "birthday",
    "date_of_birth": "birthday",
    "is_aged": "age",
    "years_old": "age",
    "has_a_pet": "has_pet",
    "pet": "has_pet",
    "owns_pet": "has_pet",
    "speaks_language": "speaks",
    "studies_at": "attends",
    "email_address": "email",
    "phone_number": "phone",
    "is_from": "comes_from",
    "originally_from": "comes_from",
    "hometown": "comes_from",
    "prefer": "prefers",
    "number_of_children": "has_children",
}
# British words as American ones: "favourite colour" and "favorite color" are one predicate.
_SPELLINGS: Mapping[str, str] = {
    **{f"{stem}our": f"{stem}or" for stem in ("col", "flav", "neighb", "behavi", "hum", "hon", "lab", "rum", "harb")},
    "colours": "colors",
    "flavours": "flavors",
    "neighbours": "neighbors",
    "favourite": "favorite",
    "favourites": "favorites",
    "theatre": "theater",
    "programme": "program",
    "centre": "center",
    "jewellery": "jewelry",
    "organisation": "organization",
    "licence": "license",
    "aeroplane": "airplane",
    "grey": "gray",
}

# Of these a subject has one at a time: a new one ends the old one.
_SINGLE = frozenset(
    {
        *("name", "age", "birthday", "gender", "nationality", "native_language", "height", "weight"),
        *("lives_in", "timezone", "email", "phone", "works_at", "has_job", "attends", "theme", "current_goal"),
        *("spouse", "relationship_status", "marital_status", "has_children", "born_in"),
    }
)

# Words by which questions ask for a predicate: English ones that its name lacks, German, Spanish and French ones.
_QUESTION_WORDS: Mapping[str, str] = {
    "lives_in": "address residence wohne wohnst wohnt wohnen wohnte gewohnt lebe lebst lebt lebte gelebt Wohnort "
    "vivo vives vive vivir vivía vivido habite habites habiter habitais habité vivais vécu",
    "works_at": "job employer employed company workplace arbeite arbeitest arbeitet arbeitete gearbeitet Arbeitgeber "
    "trabajo trabajas trabaja trabajaba trabajado empresa travaille travailles travaillais travaillé employeur",
    "has_job": "work occupation profession career Beruf arbeite arbeitest trabajo trabajas profesión "
    "métier travaille travailles",
    "likes": "mag magst liebe gusta gustan encanta aime aimes",
    "dislikes": "hate mag magst hasse gusta gustan odio aime déteste",
    "diet": "Ernährung esse dieta",
    "allergic_to": "allergy allergies "
    "allergisch Allergie Allergien alérgico alérgica alergia alergias allergique allergies",
    "speaks": "language spreche sprichst Sprache Sprachen hablo hablas idioma idiomas parle parles langue langues",
    "has_pet": "animal Haustier Haustiere Hund Katze mascota mascotas perro gato chien",
    "name": "heiße heißt llamo llamas nombre appelle appelles nom prénom",
    "birthday": "born birth Geburtstag cumpleaños anniversaire",
    "attends": "study school college university "
    "studiere studierst studiert Universität estudio estudias estudiado universidad étudie étudié université",
    "has_partner": "girlfriend boyfriend fiancé fiancée",
    "spouse": "wife husband married partner",
    "comes_from": "origin hometown",
}

# Words by which questions ask for a relation whose name has no gender.
_KIN_WORDS: Mapping[str, str] = {
    "has_sibling": "brother sister",
    "has_parent": "mother father mom mum dad",
    "has_child": "son daughter kid",
}

# The predicate that each ends for the same object: to dislike tea ends to like it.
OPPOSITES: Mapping[str, str] = {"likes": "dislikes", "dislikes": "likes"}


# Something that happened once, at the start of its validity: it is not true of a later year, though it has no end.
_EVENT = re.compile(r"(?:visited|travelled|went|attended|met|bought|sold|graduated|won|read|watched)(?:_|$)")

_ARTICLES = frozenset({"a", "an", "the", "my", "his", "her", "their", "our"})

# Multi-valued, but two objects of one kind exclude each other.
EXCLUSIVE = frozenset({"prefers"})


def canonical(predicate: str) -> str:
    """The stored name of a predicate: snake case, synonyms merged ("Moved to" → `lives_in`)."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", predicate.strip())  # livesIn
    words = re.sub(r"[\W_]+", "_", apart.casefold()).strip("_").split("_")
    snake = "_".join(_SPELLINGS.get(word, word) for word in words)
    return _SYNONYMS.get(snake, snake)


def cardinality(predicate: str, said: Cardinality | None = None) -> Cardinality:
    """Whether a canonical predicate is single-valued. The built-in value has precedence over the model's."""
    if predicate in _SINGLE or predicate.startswith("favorite_"):
        return Cardinality.SINGLE
    if predicate in OPPOSITES or predicate.startswith(("has_", "visited", "owns", "speaks", "allergic")):
        return Cardinality.MULTI
    return said or Cardinality.MULTI


def is_event(predicate: str) -> bool:
    """Whether it is of an event, which has a time, and not of a state, which lasts."""
    return _EVENT.match(predicate) is not None


def searched_text(fact: Fact) -> str:
    """The fact with further words that questions have for its predicate."""
    words = _QUESTION_WORDS.get(fact.predicate)
    return f"{fact.text} {words}" if words else fact.text


def is_vaguer(predicate: str, new: str, old: str) -> bool:
    """Whether a new object has less than an old one and contradicts nothing of it: the year of a birthday."""
    if predicate != "birthday" or not re.fullmatch(r"\d{4}", new.strip()):
        return False
    return new.strip() in old or not re.search(r"\d{4}", old)


def relation_text(fact: Fact) -> str:
    """The fact with the words for its relation, of either gender: of a fact that no message words."""
    return f"{fact.text} {_KIN_WORDS.get(fact.predicate, '')}"


def excludes(predicate: str, new: str, old: str) -> bool:
    """Whether a new object ends an old one though there may be several: a preference between two of one kind.

    "light mode" ends "dark mode", because both are modes.
    """
    left, right = folded(new).split(), folded(old).split()
    return predicate in EXCLUSIVE and min(len(left), len(right)) > 1 and left[-1] == right[-1] and left != right


# "a good lasagne" is lasagne, "a nice cup of tea" is tea
_PRAISE = re.compile(
    r"^an? (?=\w+ \w)(?:(?:really |very )?(?:good|nice|proper|decent|lovely) )?"
    r"(?:(?:cup|glass|mug|pint|bowl|slice|plate|piece) of )?(?=\w)"
)


def same_text(left: str, right: str) -> bool:
    """Whether two subjects or objects are the same words, whatever their case, articles, praise and punctuation."""
    return folded(left) == folded(right)


@lru_cache(maxsize=16_384)  # a user's subjects and objects are compared again and again
def folded(text: str) -> str:
    """A subject or object as it is compared."""
    words = _PRAISE.sub("", re.sub(r"[^\w\s]+", " ", text.casefold())).split()
    first = next((place for place, word in enumerate(words) if word not in _ARTICLES), len(words) - 1)
    return " ".join(words[max(first, 0) :])
