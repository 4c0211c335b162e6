"""The table of reasons in `degraded` has each one that recall can give, and no other."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from aftermind.freshness import replica_read_lease
from aftermind.indexes import client
from aftermind.recall import pending_candidates, pipeline, query_embeddings, reranker

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "troubleshooting.md"
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def test_every_reason_is_explained_and_every_explained_reason_exists() -> None:
    section = PAGE.read_text().split("## Reasons in `degraded`")[1].split("\n## ")[0]
    explained = ROW.findall(section)
    given = {
        *_texts(pipeline, _is_append),
        *_texts(pending_candidates, _is_append, within="gaps"),
        *_texts(replica_read_lease, lambda node: isinstance(node, ast.keyword) and node.arg == "doubt"),
        *_texts(query_embeddings, _is_second_result, within="vector"),
        *_texts(query_embeddings, lambda node: isinstance(node, ast.Return), within="_loading"),
        *_texts(client, _is_second_result, within="search"),
        *_texts(reranker, lambda node: isinstance(node, ast.Return), within="rerank"),
    }

    assert len(given) > 10
    assert sorted(explained) == sorted(given)


def _is_append(node: ast.AST) -> bool:
    """`run.degraded.append(…)`, or `found.append(…)` of a function that collects reasons."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "append":
        return False
    return ast.unparse(node.func.value) in ("run.degraded", "found")


def _is_second_result(node: ast.AST) -> bool:
    """`return None, "…"`."""
    return (
        isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and ast.unparse(node.value.elts[0]) == "None"
    )


def _texts(module: ModuleType, is_place: Callable[[ast.AST], bool], *, within: str | None = None) -> set[str]:
    """Texts of the places that fit, with `…` for what is filled in."""
    tree = ast.parse(inspect.getsource(module))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    searched: list[ast.AST] = [tree] if within is None else [each for each in functions if each.name == within]
    return {text for each in searched for node in ast.walk(each) if is_place(node) for text in _templates(node)}


def _templates(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _templates(child)
