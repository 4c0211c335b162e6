"""Chat: try an agent with memory, and inspect its recalled memory and the facts extracted afterwards."""

import asyncio
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse

from aftermind import errors
from aftermind.agent import Agent
from aftermind.settings import Settings
from aftermind.types import ExtractionResult, ExtractionState, Message
from aftermind.types.api_key import Right
from aftermind.web.auth import get_memory
from aftermind.web.pages import rendering
from aftermind.web.pages.events import list_kinds, stream
from aftermind.web.pages.page_permissions import WRITES, Owner, Seen, recorded, whose

EARLIER = 20  # messages of the session that are shown above the new ones
AGENT = "chat"
INSTRUCTIONS = "You are a helpful assistant. Answer briefly, and use what you remember of the user."
ANSWER_SECONDS = 90.0  # a model that has not answered by then is not waited for; browsers and proxies end at about that

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/chat", response_class=HTMLResponse)
async def chat(
    request: Request, viewer: Seen, user: str = "", session: str = "chat", *, anonymous: bool = False
) -> HTMLResponse:
    """Show the session so far and a form for the next message."""
    shown: dict[str, object] = {"whose": None}
    if user or anonymous:
        chosen = await recorded(request, whose(viewer, user.strip(), anonymous=anonymous))
        cursor = int(await viewer.memory.event_cursor(**chosen.scope))
        shown = {
            "whose": chosen,
            "stream": stream(chosen, cursor),
            "kinds": list_kinds(),
            "earlier": await viewer.memory.history(**chosen.scope, session_id=session, limit=EARLIER),
        }
    model = _model(viewer.memory.settings)
    return rendering.page(
        request, "chat.html", shown, here="chat", session=session, model=model, may_write=viewer.may(Right.WRITE)
    )


@router.post("/chat/say", dependencies=WRITES, response_class=HTMLResponse)
async def send(request: Request, whose: Owner, prompt: Annotated[str, Form()], session: str = "chat") -> HTMLResponse:
    """Answer, then remember the exchange. Without a model there is no answer, and the page states this."""
    memory = whose.memory
    model = _model(memory.settings)
    if model is None:
        block = await memory.recall(prompt, **whose.scope, session_id=session)
        receipt = await memory.remember(Message.user(prompt), **whose.scope, session_id=session, agent_id=AGENT)
        told: dict[str, object] = {"block": block, "answer": None, "receipt": receipt, "usage": ()}
    else:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                out = await (await _agent(request)).arun(prompt, **whose.scope, session_id=session)
        except TimeoutError as exc:
            raise errors.ModelUnavailable(model, f"no answer within {ANSWER_SECONDS:g} s") from exc
        told = {"block": out.memory, "answer": out.text, "receipt": out.receipt, "usage": out.usage}
    return rendering.page(request, "_exchange.html", told, whose=whose, session=session, prompt=prompt, model=model)


@router.get("/chat/after", response_class=HTMLResponse)
async def after(request: Request, whose: Owner, episode: UUID, session: str = "chat") -> HTMLResponse:
    """Show the state of a turn after its answer and the facts from it; polls until both are final."""
    found = await whose.memory.history(**whose.scope, session_id=session, limit=200)
    came = await whose.memory.extraction(**whose.scope, session_id=session, limit=200)
    facts = await whose.memory.facts.history(**whose.scope, limit=1_000)
    learned = next((each for each in came if each.episode_id == episode), None)
    return rendering.page(
        request,
        "_turn_progress.html",
        whose=whose,
        session=session,
        id=episode,
        said=next((each for each in found if each.id == episode), None),
        learned=learned,
        facts=[fact for fact in facts if episode in fact.sources],
        is_over=_is_over(learned),
    )


async def _agent(request: Request) -> Agent:
    """One agent for the whole process: model clients created per message would never be closed."""
    state = request.app.state
    if not hasattr(state, "agent"):
        state.agent = Agent(INSTRUCTIONS, memory=await get_memory(request), agent_id=AGENT, history_messages=EARLIER)
    agent: Agent = state.agent
    return agent


def _is_over(learned: ExtractionResult | None) -> bool:
    return learned is not None and learned.state is not ExtractionState.WAITING


def _model(settings: Settings) -> str | None:
    """Which model answers; None where no key is set."""
    return None if settings.openai_api_key is None else settings.chat_model
