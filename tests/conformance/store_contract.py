"""What every store promises, whichever database keeps it. Bound to each in `test_stores.py`."""

from tests.conformance.store_documents import DocumentsContract
from tests.conformance.store_episodes import EpisodesContract
from tests.conformance.store_erasure import ForgettingContract
from tests.conformance.store_facts import FactsContract
from tests.conformance.store_items import ItemsContract


class StoreContract(EpisodesContract, FactsContract, DocumentsContract, ItemsContract, ForgettingContract):
    """All of it."""
