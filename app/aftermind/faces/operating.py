"""What operators have of a memory: policies, the audit trail, keys."""

from aftermind.faces.audit import Audit
from aftermind.faces.encryption import Encryption
from aftermind.faces.parts import Parts
from aftermind.faces.retention import Retention


class Operating:
    """Part of `Memory`. Each raises `InvalidSettings` where jobs run in this process, which has no operators."""

    _parts: Parts

    @property
    def retention(self) -> Retention:
        """How long a namespace keeps its episodes."""
        parts = self._parts
        return Retention(
            db=parts.db,
            store=parts.store,
            ledger=parts.ledger,
            keeping=parts.kept(parts.keeping),
            effect=parts.effect,
            namespace=parts.namespace,
            trail=parts.trail,
        )

    @property
    def audit(self) -> Audit:
        """What operators looked at, changed and deleted."""
        parts = self._parts
        trail, work = parts.kept(parts.trail), parts.kept(parts.work)
        return Audit(db=parts.db, work=work, trail=trail, namespace=parts.namespace, of_all=parts.sees_all)

    @property
    def keeps_audit(self) -> bool:
        """Whether there is an audit trail."""
        return self._parts.trail is not None

    @property
    def encryption(self) -> Encryption:
        """Content sealed in the database, and its keys."""
        parts = self._parts
        return Encryption(
            db=parts.kept(parts.work),
            vault=parts.kept(parts.vault),
            trail=parts.kept(parts.trail),
            namespace=parts.namespace,
            language=parts.settings.language,
        )
