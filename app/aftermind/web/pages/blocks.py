"""Memory explorer: the working texts of a user, to be read and edited."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind import errors
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import WRITES, Owner, OwnerView

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/memory/blocks", response_class=HTMLResponse)
async def blocks(request: Request, whose: Owner) -> HTMLResponse:
    """Every block of a user, each in a form."""
    return await _render(request, whose)


@router.post("/memory/blocks", dependencies=WRITES, response_model=None)
async def save(
    request: Request,
    whose: Owner,
    name: Annotated[str, Form()],
    content: Annotated[str, Form()] = "",
    description: Annotated[str, Form()] = "",
    version: Annotated[int, Form()] = 0,
) -> HTMLResponse | RedirectResponse:
    """Save a block's text. If another edit was faster, show both texts and save nothing."""
    text = content.replace("\r\n", "\n")  # forms send line ends as RFC 5322 has them
    try:
        await whose.memory.blocks.set(
            name.strip(), text, description=description, **whose.scope, expected_version=version
        )
    except (errors.BlockConflict, errors.InvalidBlock) as exc:
        return await _render(request, whose, status=409, problem=str(exc), mine={name.strip(): text})
    return RedirectResponse(rendering.link("/memory/blocks", **whose.query, saved=name.strip()), status_code=303)


@router.post("/memory/blocks/delete", dependencies=WRITES, response_model=None)
async def delete(whose: Owner, name: Annotated[str, Form()]) -> RedirectResponse:
    """Remove a block."""
    await whose.memory.blocks.delete(name, **whose.scope)
    return RedirectResponse(rendering.link("/memory/blocks", **whose.query), status_code=303)


async def _render(
    request: Request,
    whose: OwnerView,
    *,
    status: int = 200,
    problem: str | None = None,
    mine: dict[str, str] | None = None,
) -> HTMLResponse:
    return rendering.page(
        request,
        "blocks.html",
        status=status,
        here="memory",
        tab="blocks",
        whose=whose,
        blocks=await whose.memory.blocks.list(**whose.scope),
        problem=problem,
        mine=mine or {},
        saved=request.query_params.get("saved"),
    )
