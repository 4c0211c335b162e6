"""Traits that somebody wants of a profile, as a Pydantic model of their own."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field


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


class Years(BaseModel):
    """A number that is read from a text like "34 years"."""

    age: Annotated[int, BeforeValidator(lambda given: str(given).split()[0])]
