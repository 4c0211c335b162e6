"""Maps each kind of job to its handler: the only module that names all kinds."""

from collections.abc import Mapping

from aftermind.types import JobKind
from aftermind_tasks import embed, extract, forget, index, profile, replay_dry_run, store, summarise
from aftermind_tasks.job_runner import Handler

_MARGIN = 15.0  # seconds in addition to the model call, for the database and one more attempt at the answer

_HANDLERS = (
    Handler(
        kind=JobKind.STORE,
        run=store.run,
        at_once=lambda settings: settings.store_batch_turns,
        deadline=lambda settings: 6 * settings.db_timeout_seconds,
        split=store.split,
    ),
    Handler(
        kind=JobKind.EMBED,
        run=embed.run,
        at_once=lambda settings: settings.embed_batch_texts,
        deadline=lambda settings: settings.model_timeout_seconds + _MARGIN,
        split=embed.split,
        weight=embed.CLAIM_CHARACTERS,
    ),
    Handler(
        kind=JobKind.INDEX,
        run=index.run,
        at_once=lambda settings: settings.embed_batch_texts,
        deadline=lambda settings: settings.model_timeout_seconds + _MARGIN,
        weight=index.CLAIM_ENTRIES,
    ),
    Handler(
        kind=JobKind.EXTRACT,
        run=extract.run,
        at_once=lambda settings: 1,
        deadline=lambda settings: 2 * settings.model_timeout_seconds + _MARGIN,
    ),
    Handler(
        kind=JobKind.SUMMARISE,
        run=summarise.run,
        at_once=lambda settings: 1,
        deadline=lambda settings: 2 * settings.model_timeout_seconds + _MARGIN,
    ),
    Handler(
        kind=JobKind.PROFILE,
        run=profile.run,
        at_once=lambda settings: 1,
        deadline=lambda settings: 2 * settings.model_timeout_seconds + _MARGIN,
    ),
    Handler(
        kind=JobKind.FORGET,
        run=forget.run,
        at_once=lambda settings: 1,
        deadline=lambda settings: 6 * settings.db_timeout_seconds,
    ),
    Handler(
        kind=JobKind.SHADOW,
        run=replay_dry_run.run,
        at_once=lambda settings: 1,
        deadline=lambda settings: 2 * settings.model_timeout_seconds + _MARGIN,
    ),
)

_BY_KIND = {handler.kind: handler for handler in _HANDLERS}
KINDS = tuple(_BY_KIND)  # in the order in which a worker of their queue checks them


def handler(kind: JobKind) -> Handler:
    """The handler of a kind; every kind in `KINDS` has one."""
    return _BY_KIND[kind]


def handlers() -> Mapping[JobKind, Handler]:
    """All of them, for the in-process queue: the entry point `aftermind.handlers`."""
    return dict(_BY_KIND)
