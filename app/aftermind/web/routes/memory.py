"""Remember and recall: the two that every agent needs."""

from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response

from aftermind import errors
from aftermind.api.turn_builder import KEY_BYTES
from aftermind.receipt import Receipt
from aftermind.web import schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.path_ids import ANONYMOUS, named_user

router = APIRouter(tags=["memory"])

User = Annotated[str | None, Depends(named_user)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_BYTES,
        description="The same key again, of the same user, is the same turn: nothing is stored twice.",
    ),
]


@router.post("/users/{user_id:id}/turns", status_code=202, summary="Remember a turn")
async def remember(
    request: Request,
    user_id: User,
    turn: schemas.TurnIn,
    memory: Remembering,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> schemas.ReceiptOut:
    """Hand a turn over. It is safe when this answers, and the next recall sees it; the rest follows in the background.

    `429` where more is pending than the service takes and it is set to refuse; `503` where neither Redis nor the
    service's disk takes it. Then nothing was kept: send it again, with the same `Idempotency-Key`.
    """
    given = turn.messages if isinstance(turn.messages, list) else [turn.messages]
    messages = [each if isinstance(each, str) else each.model_dump(exclude_unset=True) for each in given]
    receipt = await memory.remember(
        messages,
        user_id=user_id,
        session_id=turn.session_id,
        agent_id=turn.agent_id,
        namespace=who.namespace,
        idempotency_key=idempotency_key,
        save=turn.save,
        accept=turn.accept,
        recalled=turn.recalled,
    )
    return _receipt(request, user_id, receipt)


@router.get("/users/{user_id:id}/turns/{job_id}", summary="State of a turn")
async def turn_status(user_id: User, job_id: UUID, memory: Remembering, who: Reader) -> schemas.StatusOut:
    """The current state of a receipt's turn. Returns immediately; events report changes."""
    status = await memory.jobs.status(str(job_id), user_id=user_id, namespace=who.namespace)
    if status is None:
        raise errors.NotThere("turn", str(job_id))
    return schemas.StatusOut(stored=status.stored, embedded=status.embedded, extracted=status.extracted, why=status.why)


@router.post("/users/{user_id:id}/recall", response_model=schemas.RecallOut, summary="Recall a block for a query")
async def recall(
    request: Request, user_id: User, asked: schemas.RecallIn, memory: Remembering, who: Reader
) -> Response:
    """A block for a system prompt, within a token budget, and its parts.

    Answers within AFTERMIND_RECALL_BUDGET_SECONDS, also if the database is down; `degraded` then has the reason.
    """
    block = await memory.recall(user_id=user_id, namespace=who.namespace, **asked.model_dump())
    request.state.recall_id = block.id
    return schemas.block_response(block)


@router.post("/users/{user_id:id}/feedback", status_code=202, summary="Count what helped to answer")
async def feedback(
    request: Request,
    user_id: User,
    given: schemas.FeedbackIn,
    memory: Remembering,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> schemas.ReceiptOut:
    """Feedback about episodes and facts that a recall returned. It is handed over as a turn is, with the same answers.

    What is about no episode or fact of the user has no effect.
    """
    receipt = await memory.feedback(
        helpful=given.helpful,
        unhelpful=given.unhelpful,
        user_id=user_id,
        namespace=who.namespace,
        idempotency_key=idempotency_key,
        accept=given.accept,
    )
    return _receipt(request, user_id, receipt)


@router.post(
    "/users/{user_id:id}/recall/scored",
    response_model=list[schemas.MatchOut],
    summary="All matches of a query, with their scores",
)
async def recall_scored(user_id: User, asked: schemas.RecallIn, memory: Remembering, who: Reader) -> Response:
    """What was found, best first, whatever tokens it takes; `token_budget` is not used."""
    found = await memory.recall_scored(user_id=user_id, namespace=who.namespace, **asked.model_dump())
    return schemas.matches_response(found)


@router.post(
    "/users/{user_id:id}/recall/explain",
    response_model=schemas.ExplanationOut,
    summary="Why a block has what it has",
)
async def explain(user_id: User, asked: schemas.ExplainIn, memory: Remembering, who: Reader) -> Response:
    """The block for a query, and the candidates that it left out, each with its scores and the reason.

    `recall_id` repeats an earlier recall as of its time. Nothing is kept of a recall.
    """
    found = await memory.explain(user_id=user_id, namespace=who.namespace, **asked.model_dump())
    return schemas.explanation_response(found)


def _receipt(request: Request, user_id: str | None, receipt: Receipt) -> schemas.ReceiptOut:
    return schemas.ReceiptOut(
        job_id=receipt.job_id,
        episode_ids=list(receipt.episode_ids),
        spooled=receipt.spooled,
        status_url=_status_url(request, user_id, receipt.job_id),
    )


def _status_url(request: Request, user_id: str | None, job_id: UUID) -> str:
    root = request.scope.get("root_path", "")
    if user_id is None:
        return f"{root}/v1/users/{ANONYMOUS}/turns/{job_id}?anonymous=true"
    return f"{root}/v1/users/{quote(user_id, safe='')}/turns/{job_id}"
