"""Bounds on the number and the nesting of a JSON body's values, checked before it is parsed.

15 MB of small values take half a second of the event loop and 300 MB of memory to parse; the same size of text takes
neither. Deep nesting ends in an error of every recursive reader behind the parser. Both checks are linear, and the
counts use C-level bytes methods, each some 10 ms for the largest body.
"""

import re

from aftermind import errors

SMALL_BYTES = 65_536  # parsed without a count of its values: at most some 30,000
MAX_VALUES = 100_000  # a turn has 1,000 messages at most, so a hundred values for each
MAX_DEPTH = 64  # metadata may nest 8 deep, inside a message, inside a turn

# An unterminated string runs to the end, once: possessive, so that no part of it is tried again.
_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


def is_small(body: bytes) -> bool:
    """Whether a body can break neither bound."""
    return len(body) <= SMALL_BYTES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH


def check_body(body: bytes) -> None:
    """Raise `InvalidQuery` if the body holds more values than a request needs, or nests them deeper."""
    if len(body) > SMALL_BYTES and _separators(body) > MAX_VALUES:
        bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what quotes are left delimit strings
        if bare.count(b'"') > 4 * MAX_VALUES or _separators(b"".join(bare.split(b'"')[::2])) > MAX_VALUES:
            why = f"a body may have at most {MAX_VALUES:,} JSON values."
            raise errors.InvalidQuery("body", f"{len(body):,} bytes", why)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise errors.InvalidQuery(
            "body", f"{len(body):,} bytes", f"a body may be nested at most {MAX_DEPTH} levels deep."
        )


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _depth(body: bytes) -> int:
    deepest = depth = 0
    for part in _PARTS.finditer(body):
        found = part[0]
        if found in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found in b"]}":
            depth -= 1
    return deepest
