"""Blocks, session summaries and profiles of a user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aftermind.types.message import Json, shorten
from aftermind.types.scope import EpisodeId, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A named working text of a user ("human", "persona", "todo"); `version` grows by one with each edit."""

    scope: Scope
    name: str
    content: str
    version: int
    updated_at: datetime
    description: str = ""

    def __repr__(self) -> str:
        return f"<Block {self.name!r} version {self.version}: {shorten(self.content)!r}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A condensed session. It covers the session's episodes up to position `covers_to`, which are `messages`
    in number; the latest occurred at `last_message_at`.
    """

    scope: Scope
    text: str
    covers_to: int
    messages: int
    updated_at: datetime
    summariser: str
    version: int = 1
    last_message_at: datetime | None = None

    def __repr__(self) -> str:
        return f"<Summary of {self.messages} messages: {shorten(self.text)!r}>"


def latest_message_at(before: Summary | None, occurred: Iterable[datetime]) -> datetime:
    """When the latest message of a summary occurred that continues another one."""
    earlier = [before.last_message_at] if before is not None and before.last_message_at is not None else []
    return max([*earlier, *occurred])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """One learned trait of a user, with the episodes that support it, of which the latest occurred at
    `last_message_at`; None if a call has changed the trait since.
    """

    value: Json
    evidence: tuple[EpisodeId, ...] = ()
    updated_at: datetime | None = None
    last_message_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What has been learned about a user, trait by trait; an update touches only the traits that it names."""

    scope: Scope
    traits: Mapping[str, Trait] = field(default_factory=dict)
    version: int = 0
    updated_at: datetime | None = None

    def __repr__(self) -> str:
        traits = ", ".join(f"{name}={trait.value!r}" for name, trait in self.traits.items())
        return f"<Profile {shorten(traits, characters=120)}>"
