"""`aftermind webhooks`: where a namespace's events are posted to."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.api.webhooks import Webhooks
from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, out
from aftermind.memory import Memory
from aftermind.types.webhook import NewWebhook, Webhook, WebhookId

webhooks = typer.Typer(
    help="Webhooks: URLs that receive events. Create, list, enable and delete them.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, or the end of it as in `list`.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(webhooks, name="webhooks")


@webhooks.command()
@terminal.with_json
def create(
    url: Annotated[str, typer.Argument(help="An https:// URL on the public internet.")],
    *,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", "-e", help="Only this kind, like MemoryUpdateCompleted. May be repeated."),
    ] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    namespace: Namespace = None,
) -> NewWebhook:
    """Create a webhook and print its secret, once: it signs each event (Standard Webhooks)."""

    async def work(memory: Memory) -> NewWebhook:
        return await memory.webhooks.create(url, events=event or (), description=description, namespace=namespace)

    made = terminal.with_memory(work)
    kinds = ", ".join(made.webhook.events) or "every kind"
    told = f"Webhook [bold]{made.webhook.id}[/] of namespace {escape(repr(made.webhook.namespace))} gets {kinds}."
    terminal.err.print(f"{told} Keep its secret: it is not shown again.")
    out.print(made.secret, markup=False)
    return made


@webhooks.command("list")
@terminal.with_json
def list_(*, namespace: Namespace = None, wide: terminal.Wide = False) -> list[Webhook]:
    """List the webhooks of a namespace with their state."""
    found = terminal.with_memory(lambda memory: memory.webhooks.list(namespace=namespace))
    none = "This namespace has no webhook. `aftermind webhooks create URL` makes one."
    terminal.show(_table(found, wide=wide) if found else none, wide=wide)
    return found


@webhooks.command("rotate-secret")
@terminal.with_json
def rotate_secret(
    webhook_id: Id,
    *,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=720, help="Sign with the former secret too for this many hours.")
    ] = 24.0,
    namespace: Namespace = None,
) -> NewWebhook:
    """Replace the secret of a webhook and print the new one, once. Both sign during the overlap."""

    async def work(memory: Memory) -> NewWebhook | None:
        overlap, wanted = timedelta(hours=overlap_hours), await _find_id(memory, webhook_id, namespace)
        return await memory.webhooks.rotate_secret(wanted, overlap=overlap, namespace=namespace)

    rotated = terminal.with_memory(work)
    if rotated is None:
        raise terminal.missing_id(webhook_id, namespace, "webhooks")
    until = rotated.webhook.former_secret_until
    ends = "no longer signs" if until is None else f"signs too until {terminal.when(until)}"
    terminal.err.print(f"The former secret {ends}. Keep the new one: it is not shown again.")
    out.print(rotated.secret, markup=False)
    return rotated


@webhooks.command()
@terminal.with_json
def enable(webhook_id: Id, *, namespace: Namespace = None) -> dict[str, str]:
    """Enable a webhook again and deliver its pending events now."""
    found = _apply(lambda hooks: hooks.enable, webhook_id, namespace)
    out.print(f"{webhook_id} is tried again.")
    return {"enabled": str(found)}


@webhooks.command()
@terminal.with_json
def delete(webhook_id: Id, *, namespace: Namespace = None) -> dict[str, str]:
    """Delete a webhook and its pending events."""
    found = _apply(lambda hooks: hooks.delete, webhook_id, namespace)
    out.print(f"{webhook_id} gets nothing any more.")
    return {"deleted": str(found)}


def _apply(
    call: Callable[[Webhooks], Callable[..., Awaitable[bool]]], webhook_id: str, namespace: str | None
) -> WebhookId:
    """Call a method of `memory.webhooks` with a webhook that the namespace has; returns its whole id."""

    async def work(memory: Memory) -> WebhookId | None:
        found = await _find_id(memory, webhook_id, namespace)
        return found if await call(memory.webhooks)(found, namespace=namespace) else None

    found = terminal.with_memory(work)
    if found is None:
        raise terminal.missing_id(webhook_id, namespace, "webhooks")
    return found


async def _find_id(memory: Memory, given: str, namespace: str | None) -> WebhookId:
    """The id that is given, or that of the one webhook of the namespace whose id ends with it."""
    with suppress(ValueError):
        return WebhookId(UUID(given))
    listed = await memory.webhooks.list(namespace=namespace)
    if (found := terminal.match_short_id([hook.id for hook in listed], given)) is None:
        raise terminal.missing_id(given, namespace, "webhooks")
    return found


def _table(found: list[Webhook], *, wide: bool) -> Table:
    shown = terminal.make_table(
        "id", "state", "waiting", "given up", "url, events, reason", flexible="url, events, reason"
    )
    for hook in found:
        counts = (f"{hook.waiting:,}", f"{hook.failed:,}")
        url = f"{hook.url} ({', '.join(hook.events) or 'all events'})"
        url = f"{url}: {hook.reason}" if hook.reason else url
        shown.add_row(
            str(hook.id) if wide else terminal.short_id(hook.id), _state(hook), *counts, terminal.one_line(url)
        )
    return shown


def _state(hook: Webhook) -> str:
    if hook.is_disabled:
        return "[red]disabled[/]"
    if hook.failing_since is not None:
        return f"[yellow]failing since {terminal.when(hook.failing_since)}[/]"
    return "[green]well[/]" if hook.delivered_at else "nothing posted yet"
