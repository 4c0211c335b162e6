"""What every store promises, whichever database keeps it. Bound to each in `test_stores.py`."""

from tests.conformance.store_documents import DocumentsContract
from tests.conformance.store_episodes import EpisodesContract
from tests.conformance.store_facts import FactsContract
from tests.conformance.store_forgetting import ForgettingContract


class StoreContract(EpisodesContract, FactsContract, DocumentsContract, ForgettingContract):
    """All of it."""
