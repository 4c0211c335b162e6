"""Blocks: named working texts. `If-Match` with a block's version protects an edit against concurrent changes."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response

from aftermind import errors
from aftermind.types import Block
from aftermind.web import schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.routes.memory import User

router = APIRouter(tags=["blocks"])

Name = Annotated[str, Path(min_length=1, max_length=128)]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description='The version that was read, as in `"3"`; `"0"`: there must be none yet.'),
]


@router.get("/users/{user_id:id}/blocks", summary="All blocks, by name")
async def list_(user_id: User, memory: Remembering, who: Reader) -> list[schemas.BlockOut]:
    """All of them: a user has few."""
    return [
        schemas.BlockOut.model_validate(each)
        for each in await memory.blocks.list(user_id=user_id, namespace=who.namespace)
    ]


@router.get("/users/{user_id:id}/blocks/{name:id}", summary="One block")
async def get(user_id: User, name: Name, response: Response, memory: Remembering, who: Reader) -> schemas.BlockOut:
    """Its version is in `ETag` too."""
    found = await memory.blocks.get(name, user_id=user_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("block", name)
    return _to_out(response, found)


@router.put("/users/{user_id:id}/blocks/{name:id}", summary="Create a block, or replace its text")
async def put(
    user_id: User,
    name: Name,
    given: schemas.BlockIn,
    response: Response,
    memory: Remembering,
    who: Writer,
    if_match: IfMatch = None,
) -> schemas.BlockOut:
    """409 where it is not at the version of `If-Match`. A `description` of null leaves it as it is."""
    stored = await memory.blocks.set(
        name,
        given.content,
        description=given.description,
        user_id=user_id,
        namespace=who.namespace,
        expected_version=_version(if_match),
    )
    return _to_out(response, stored)


@router.post("/users/{user_id:id}/blocks/{name:id}/append", summary="Append a line to a block")
async def append(
    user_id: User,
    name: Name,
    given: schemas.AppendIn,
    response: Response,
    memory: Remembering,
    who: Writer,
    if_match: IfMatch = None,
) -> schemas.BlockOut:
    """The block is created where there is none."""
    stored = await memory.blocks.append(
        name, given.content, user_id=user_id, namespace=who.namespace, expected_version=_version(if_match)
    )
    return _to_out(response, stored)


@router.post("/users/{user_id:id}/blocks/{name:id}/replace", summary="Replace one occurrence of a text in a block")
async def replace(
    user_id: User,
    name: Name,
    given: schemas.ReplaceIn,
    response: Response,
    memory: Remembering,
    who: Writer,
    if_match: IfMatch = None,
) -> schemas.BlockOut:
    """HTTP 422 if the text does not occur exactly once."""
    stored = await memory.blocks.replace(
        name, given.old, given.new, user_id=user_id, namespace=who.namespace, expected_version=_version(if_match)
    )
    return _to_out(response, stored)


@router.delete("/users/{user_id:id}/blocks/{name:id}", status_code=204, summary="Delete a block")
async def delete(user_id: User, name: Name, memory: Remembering, who: Writer) -> None:
    """404 where there is none."""
    if not await memory.blocks.delete(name, user_id=user_id, namespace=who.namespace):
        raise errors.NotThere("block", name)


def _to_out(response: Response, found: Block) -> schemas.BlockOut:
    response.headers["ETag"] = f'"{found.version}"'
    return schemas.BlockOut.model_validate(found)


def _version(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise errors.InvalidBlock("If-Match", if_match, 'it is a version in quotes, as "3".')
    return int(text)
