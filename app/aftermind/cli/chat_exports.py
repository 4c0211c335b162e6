"""The `conversations.json` of ChatGPT's and of Claude's data export, as conversations with messages."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

ROLES = {"user": "user", "human": "user", "assistant": "assistant"}  # others are instructions, tools and their results


def conversations_of(found: object) -> list[dict[str, Any]] | None:  # Any: JSON
    """The conversations of an export, as an `ingest` file has them, the oldest first; None for other formats.

    Instructions, results of tools and messages without a text are left out. Of the branches of a chat with ChatGPT the
    one that is shown is read. A conversation that is malformed has no messages.
    """
    first = found[0] if isinstance(found, list) and found else None
    if not isinstance(found, list) or not isinstance(first, dict):
        return None
    if "mapping" in first:
        made = [_conversation(each, ("conversation_id", "id"), "title", _of_chatgpt(each)) for each in _objects(found)]
    elif "chat_messages" in first:
        made = [_conversation(each, ("uuid",), "name", _of_claude(each)) for each in _objects(found)]
    else:
        return None
    return sorted(made, key=lambda each: str(each["messages"][0].get("occurred_at")) if each["messages"] else "")


def _objects(found: object) -> Iterator[Mapping[str, Any]]:  # Any: JSON
    return (each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict))


def _conversation(
    found: Mapping[str, Any],  # Any: JSON
    ids: tuple[str, ...],
    title: str,
    messages: Iterator[dict[str, Any]],
) -> dict[str, Any]:
    name = next((found[each] for each in ids if isinstance(found.get(each), str)), None)
    metadata = {"title": found[title]} if isinstance(found.get(title), str) and found[title] else {}
    return {"id": name, "session_id": name, "metadata": metadata, "messages": [each for each in messages if each]}


def _of_chatgpt(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:  # Any: JSON
    """The messages on the path from the root of the tree to its `current_node`, or to its last leaf."""
    nodes = found["mapping"] if isinstance(found.get("mapping"), dict) else {}
    nodes = {name: node for name, node in nodes.items() if isinstance(node, dict)}
    at = found.get("current_node") or next((name for name in reversed(nodes) if not nodes[name].get("children")), None)
    path: dict[str, Any] = {}
    while isinstance(at, str) and at in nodes and at not in path:
        path[at] = nodes[at].get("message")
        at = nodes[at].get("parent")
    for message in _objects(list(reversed(path.values()))):
        content, author = message.get("content"), message.get("author")
        parts = content.get("parts") if isinstance(content, dict) else None
        hidden = message.get("metadata")
        if isinstance(hidden, dict) and hidden.get("is_visually_hidden_from_conversation"):
            continue
        text = "\n".join(each for each in parts if isinstance(each, str)) if isinstance(parts, list) else ""
        yield _message(author.get("role") if isinstance(author, dict) else None, text, message.get("create_time"))


def _of_claude(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:  # Any: JSON
    for message in _objects(found.get("chat_messages")):
        yield _message(message.get("sender"), message.get("text"), message.get("created_at"))


def _message(role: object, text: object, at: object) -> dict[str, Any]:  # Any: JSON
    """The message; empty for one that is not read."""
    if not isinstance(role, str) or role not in ROLES or not isinstance(text, str) or not text.strip():
        return {}
    said_at = datetime.fromtimestamp(at, UTC).isoformat() if isinstance(at, int | float) else at
    return {"role": ROLES[role], "content": text, **({} if said_at is None else {"occurred_at": said_at})}
