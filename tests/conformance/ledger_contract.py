"""What every ledger promises, whichever database keeps it. Bound to each in `test_ledgers.py`."""

from tests.conformance.ledger_enqueue import EnteringContract
from tests.conformance.ledger_queries import LookingContract
from tests.conformance.ledger_settle import EndingContract


class LedgerContract(EnteringContract, EndingContract, LookingContract):
    """All of it."""
