"""What every ledger promises, whichever database keeps it. Bound to each in `test_ledgers.py`."""

from tests.conformance.ledger_ending import EndingContract
from tests.conformance.ledger_entering import EnteringContract
from tests.conformance.ledger_looking import LookingContract


class LedgerContract(EnteringContract, EndingContract, LookingContract):
    """All of it."""
