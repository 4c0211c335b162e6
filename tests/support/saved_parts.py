"""Traits that somebody wants of a profile, as a Pydantic model of their own."""

from pydantic import BaseModel, Field


class TurnCount(BaseModel):
    """The scripted provider proposes how many turns it has seen: a number."""

    turns_seen: int = 0
    home: str | None = None


class Aliased(BaseModel):
    """A trait under another name than its field's."""

    home: str = Field(validation_alias="lives_in")


class Spelling(BaseModel):
    """The same trait, wanted as a list."""

    turns_seen: list[str] = []
