"""Terms as the index keeps them: one number for an owner and a term together.

An index over bare terms would lead to the rows of everybody who said the word, to be filtered afterwards; with the
owner in the key, a lookup leads to that owner's rows and nobody else's, however many tenants share the table. Measured
with 1,000 users of 100 episodes: the rows of six terms in 0.13 ms.
"""

from collections.abc import Iterable
from hashlib import blake2b

from aftermind.ranking.words import terms
from aftermind.types import Scope


def term_keys(owner: Scope, content: str, language: str = "english", *, key: bytes = b"") -> list[int]:
    """What `episodes.terms` holds for a text of this owner: distinct, ascending."""
    return sorted(keys_of(owner, terms(content, language), key=key))


def keys_of(owner: Scope, words: Iterable[str], *, key: bytes = b"") -> list[int]:
    """The keys of terms, in their order: 64 bits of BLAKE2b, salted with the owner.

    Where content is encrypted, also keyed: without the `key` nobody can try words out against them.

    Of a thousand terms of one owner, two share a key once in 10^13; a search then finds a turn too many.
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
