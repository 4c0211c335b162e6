"""The attacks of `attacks.yaml`, and what each family is called where it is told of."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from aftermind import Message, Role

FAMILIES: Mapping[str, str] = {
    "orders": "instructions to the model or its memory",
    "forged": "forged roles, tags and structure",
    "standing": "false claims of standing, and of others",
    "hidden": "hidden by Unicode, encodings and spelling",
    "laundered": "by quotation, tools and documents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One text, by whom it comes, and its family."""

    family: str
    text: str
    role: Role = Role.USER

    @property
    def message(self) -> Message:
        """As it is handed over."""
        return Message(role=self.role, content=self.text)


def attacks() -> list[Attack]:
    """All of them, in the order of the file."""
    listed = yaml.safe_load((Path(__file__).parent / "attacks.yaml").read_text())
    return [_attack(family, given) for family in FAMILIES for given in listed[family]]


def _attack(family: str, given: str | Mapping[str, str]) -> Attack:
    if isinstance(given, str):
        return Attack(family=family, text=given)
    [(role, text)] = given.items()
    return Attack(family=family, text=text, role=Role(role))
