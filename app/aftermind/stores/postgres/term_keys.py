"""Terms as stored in the index: one number for an owner and a term together.

An index over plain terms would lead to the rows of all users of the word, to be filtered afterwards; with the owner in
the key, a lookup leads only to the owner's rows, however many tenants share the table. Measured with 1,000 users of 100
episodes: the rows of six terms in 0.13 ms.
"""

from collections.abc import Iterable
from hashlib import blake2b

from aftermind.ranking.passages import passage_terms
from aftermind.ranking.tokenizer import terms
from aftermind.types import Scope


def term_keys(owner: Scope, content: str, language: str = "english", *, key: bytes = b"") -> list[int]:
    """What `episodes.terms` holds for a text of this owner: distinct, ascending."""
    return sorted(hash_terms(owner, terms(content, language), key=key))


def passage_keys(owner: Scope, content: str, language: str = "english", *, key: bytes = b"") -> str | None:
    """What `episodes.passage_terms` holds for a long text, as an array literal; None for a short one.

    Each passage's terms are followed by a 0, so that a position in the array gives the passage.
    """
    passages = passage_terms(content, language)
    if not passages:
        return None
    return "{" + ",".join(str(each) for terms in passages for each in (*hash_terms(owner, terms, key=key), 0)) + "}"


def hash_terms(owner: Scope, words: Iterable[str], *, key: bytes = b"") -> list[int]:
    """The keys of terms, in their order: 64 bits of BLAKE2b, salted with the owner.

    For encrypted content also keyed: without the `key` words cannot be guessed.

    Of a thousand terms of one owner, two share a key once in 10^13; a search then finds one turn too many.
    """
    salt = blake2b(digest_size=8, key=key)
    for part in (owner.namespace, owner.user_column):
        data = part.encode()
        salt.update(len(data).to_bytes(4, "big") + data)
    keys = []
    for word in words:
        hashed = salt.copy()
        hashed.update(word.encode())
        keys.append(int.from_bytes(hashed.digest(), "big", signed=True))
    return keys
