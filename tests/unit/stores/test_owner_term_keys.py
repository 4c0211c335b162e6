"""How terms are stored in the index."""

from itertools import groupby

from aftermind.stores.postgres.owner_term_keys import hash_terms
from aftermind.types import Scope

WORDS = [f"word{number}" for number in range(200)]


def test_the_terms_of_an_owner_are_neighbours_in_the_index() -> None:
    owners = [
        Scope(namespace=tenant, user_id=f"user-{number}") for tenant in ("acme", "globex") for number in range(50)
    ]

    stored = sorted((key, (owner.namespace, owner.user_id)) for owner in owners for key in hash_terms(owner, WORDS))

    assert len([each for each, _ in groupby(owner for _, owner in stored)]) == len(owners)


def test_no_term_has_the_key_of_another_term_or_owner_or_encryption_key() -> None:
    owners = [Scope(user_id="ann"), Scope(user_id="bob"), Scope(user_id=None), Scope(namespace="acme", user_id="ann")]

    stored = [key for owner in owners for secret in (b"", b"a" * 32) for key in hash_terms(owner, WORDS, key=secret)]

    assert len(set(stored)) == len(stored) == 2 * len(owners) * len(WORDS)
    assert all(-(2**63) <= key < 2**63 for key in stored)
