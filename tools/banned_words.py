"""Reports banned words with their places: `python tools/banned_words.py`. A report, not a check: it always exits 0.

Two groups: *screens* (help texts, error messages, settings, templates, scripts, README) and *prose* (docs, docstrings,
comments). Code in backquotes and fenced blocks are left out.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
BANNED = re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in CONFIG['words'])})\b", re.IGNORECASE)
QUOTED = re.compile(r"``.+?``|`[^`\n]+`|https?://\S+|\]\([^)]*\)")
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
SOURCES = ("app/", "workers/", "tasks/")
SUFFIXES = {".html", ".js", ".css", ".lua"}
SQL = re.compile(r"\b(?:SELECT|FROM|WHERE|AS|UNION|UPDATE|RETURNING|LIMIT|FUNCTION|COALESCE)\b")
# What a template shows: its markup, attributes and expressions are names, except labels.
MARKUP = re.compile(r"{#.*?#}|{%.*?%}|{{.*?}}|<[^>]*>", re.DOTALL)
LABEL = re.compile(r"""(?:title|placeholder|aria-label|alt|label)="([^"]*)\"""")


class Text(NamedTuple):
    """A passage for readers: the group that it counts for, the line at which it starts, and its words."""

    group: str
    line: int
    text: str


class Use(NamedTuple):
    """One banned word at its place."""

    group: str
    path: str
    line: int
    word: str


def main() -> None:
    """Print every use, then the counts by group."""
    uses = [use for path in _tracked() for use in list_uses(path)]
    for use in uses:
        sys.stdout.write(f"banned word ({use.group}): {use.path}:{use.line}: {use.word}\n")
    counts = Counter(use.group for use in uses)
    sys.stdout.write(f"banned words: {counts['screens']} in screens and messages, {counts['prose']} in prose\n")


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.splitlines() if path.endswith(".md") or path.startswith(SOURCES)]


def list_uses(path: str) -> Iterator[Use]:
    """Every banned word of one file that no exception allows."""
    for text in list_texts(path):
        if not any(fnmatch(path, rule["path"]) and rule["where"] == text.group for rule in CONFIG["allow"]):
            for match in BANNED.finditer(_without_code(text.text)):
                line = text.line + text.text.count("\n", 0, match.start())
                yield Use(text.group, path, line, match.group())


def _without_code(text: str) -> str:
    """The text with quoted code blanked out; length and lines stay."""
    for pattern in (FENCED, QUOTED):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    return text


def list_texts(path: str) -> Iterator[Text]:
    """The passages of a file that people read."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES | {".md", ".py"}:
        return
    source = (ROOT / path).read_text()
    if suffix == ".md":
        yield Text("screens" if path == "README.md" else "prose", 1, source)
    elif suffix == ".py":
        yield from _python(source)
    elif suffix == ".html":
        labels = ((match.start(1), match.group(1)) for match in LABEL.finditer(source))
        yield from (Text("screens", source.count("\n", 0, at) + 1, label) for at, label in labels)
        yield Text("screens", 1, MARKUP.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), source))
    else:
        yield from _script(source, comment="--" if suffix == ".lua" else "//")


def _python(source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings = {id(_docstring(node)) for node in ast.walk(tree) if _docstring(node) is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield Text("screens" if _is_command(tree, node) else "prose", node.lineno, node.value)
            elif " " in node.value and not SQL.search(node.value):
                yield Text("screens", node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text("prose", token.start[0], token.string)


def _docstring(node: ast.AST) -> ast.Constant | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def _is_command(tree: ast.Module, docstring: ast.Constant) -> bool:
    """Whether Typer or FastAPI shows this docstring: the function carries a decorator that registers it."""
    return any(
        _docstring(node) is docstring and any(isinstance(decorator, ast.Call) for decorator in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _script(source: str, *, comment: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), start=1):
        code, mark, remark = line.partition(comment)
        yield from (Text("screens", number, quoted) for quoted in re.findall(r"""["'`]([^"'`]* [^"'`]*)["'`]""", code))
        if mark or line.lstrip().startswith(("*", "/*")):
            yield Text("prose", number, remark or line)


if __name__ == "__main__":
    main()
