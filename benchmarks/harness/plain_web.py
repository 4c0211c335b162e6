"""`aftermind web` with one more route: recall as FastAPI serves it by default, the baseline of `benchmarks.service`.

The route has plain functions as dependencies, which FastAPI calls in threads, and returns models, which FastAPI
validates and serialises. Run as `python -m benchmarks.harness.plain_web web --port N`.
"""

from typing import Annotated

from fastapi import Depends, FastAPI, Request

import aftermind.web
from aftermind.cli import main
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types import Episode, Match, RecallBlock
from aftermind.web import schemas
from aftermind.web.auth import Reader
from aftermind.web.path_ids import IsAnonymous, UserPath

PATH = "/v1/plain/users/{user_id:id}/recall"
_create_app = aftermind.web.create_app


def create_app(settings: Settings | None = None) -> FastAPI:
    """The shipped application and the route."""
    app = _create_app(settings)
    app.post(PATH)(recall)
    return app


def _user(user_id: UserPath, *, anonymous: IsAnonymous = False) -> str | None:
    return None if anonymous else user_id


def _memory(request: Request) -> Memory:
    memory: Memory = request.app.state.memory
    return memory


async def recall(
    user_id: Annotated[str | None, Depends(_user)],
    asked: schemas.RecallIn,
    memory: Annotated[Memory, Depends(_memory)],
    who: Reader,
) -> schemas.RecallOut:
    """Answer as the shipped route does."""
    return _to_model(await memory.recall(user_id=user_id, namespace=who.namespace, **asked.model_dump()))


def _to_model(found: RecallBlock) -> schemas.RecallOut:
    names = schemas.RecallOut.model_fields.keys() - {"matches"}
    return schemas.RecallOut(**{n: getattr(found, n) for n in names}, matches=[_match(each) for each in found.matches])


def _match(found: Match) -> schemas.MatchOut:
    assert isinstance(found.item, Episode)  # the benchmark stores nothing else
    names = schemas.MatchOut.model_fields.keys() - {"kind", "item", "passage"}
    passage = None if found.passage is None else schemas.PassageOut.model_validate(found.passage)
    values = {name: getattr(found, name) for name in names}
    return schemas.MatchOut(kind="episode", item=_episode(found.item), passage=passage, **values)


def _episode(found: Episode) -> schemas.EpisodeOut:
    names = schemas.EpisodeOut.model_fields.keys() - {"session_id", "agent_id"}
    values = {name: getattr(found, name) for name in names}
    return schemas.EpisodeOut(session_id=found.scope.session_id, agent_id=found.scope.agent_id, **values)


if __name__ == "__main__":
    aftermind.web.create_app = create_app  # uvicorn imports it by this name
    main()
