"""Which table has the vectors of which embedder: two tables, whose roles a cutover exchanges without rewriting a row.

The shared table `embedders` has the active embedder, the standby one of a re-embedding, the former one after its
cutover, and under `first` the one whose vectors are in the table `vectors` (without it: the active one's).
"""

from collections.abc import Sequence

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.types import EmbedderIdentity, StoredEmbedders
from aftermind.types.reembedding import Reembedding

ACTIVE, STANDBY, FORMER, FIRST = "active", "standby", "former", "first"
VECTOR_TABLES = ("vectors", "other_vectors")
Embedders = dict[str, EmbedderIdentity]


def read_embedders(tx: Transaction) -> Reembedding | None:
    """The embedders of the stored vectors; None if the store does not record any."""
    rows: Embedders = mem(tx).table("embedders")
    if ACTIVE not in rows:
        return None
    stored = StoredEmbedders(active=rows[ACTIVE], standby=rows.get(STANDBY))
    return Reembedding(stored=stored, is_cut_over=FORMER in rows)


def vector_table(tx: Transaction, embedder: EmbedderIdentity | None = None) -> str | None:
    """The table with vectors of an embedder (None: of the active one); None if the store has none of it."""
    return find_table(mem(tx).table("embedders"), embedder)


def find_table(rows: Embedders, embedder: EmbedderIdentity | None = None) -> str | None:
    """As `vector_table`, from the rows of `embedders`."""
    active, standby = rows.get(ACTIVE), rows.get(STANDBY)
    tables: Sequence[str] = VECTOR_TABLES if rows.get(FIRST, active) == active else VECTOR_TABLES[::-1]
    if active is None or embedder in (None, active):
        return tables[0]
    return tables[1] if embedder == standby else None


def standby_table(tx: Transaction) -> str:
    """The table that has, or would have, the vectors of the standby embedder."""
    active = vector_table(tx)
    return next(each for each in VECTOR_TABLES if each != active)


def begin(tx: Transaction, target: EmbedderIdentity) -> None:
    """Make an embedder the standby one; its table is empty."""
    run = mem(tx)
    rows: Embedders = run.table("embedders")
    run.put(rows, FIRST, rows[ACTIVE] if vector_table(tx) == VECTOR_TABLES[0] else target)
    run.put(rows, STANDBY, target)


def exchange(tx: Transaction) -> None:
    """Make the standby embedder the active one, and the reverse."""
    run = mem(tx)
    rows: Embedders = run.table("embedders")
    if STANDBY not in rows:
        raise errors.NoReembedding()
    active, standby = rows[ACTIVE], rows[STANDBY]
    run.put(rows, ACTIVE, standby)
    run.put(rows, STANDBY, active)
    if not run.drop(rows, FORMER):
        run.put(rows, FORMER, active)


def forget_standby(tx: Transaction) -> None:
    """Leave only the active embedder; the vectors of the other one can then be deleted."""
    rows = mem(tx).table("embedders")
    for name in (STANDBY, FORMER):
        mem(tx).drop(rows, name)
