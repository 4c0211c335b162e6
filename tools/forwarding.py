"""Report functions that only forward: the whole body is one call of another function with the same parameters.

    python tools/forwarding.py [--count] [PATH ...]

A forwarding function costs a reader one hop and does nothing. Counted: `return f(a, b)`, `return await f(a, b)` and
`await f(a, b)` as the only statement after the docstring, where `f` is a plain or dotted name and every argument is a
parameter of the function or an attribute of `self`. Not counted: `__dunder__` methods, decorated functions
(properties, routes, caches), and calls that add a constant or a computed value: those do something.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("app", "workers", "tasks")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Print each forwarding function with its place, then their number."""
    parser = argparse.ArgumentParser(description="Report functions that only forward.")
    parser.add_argument("paths", nargs="*", type=Path, default=[Path(root) for root in ROOTS])
    parser.add_argument("--count", action="store_true", help="print the number only")
    options = parser.parse_args()
    found = [line for path in options.paths for line in find_forwarding(path)]
    if not options.count:
        for line in found:
            print("forwards:", line)
    print(f"{len(found)} forwarding functions")


def find_forwarding(root: Path) -> Iterator[str]:
    """The forwarding functions below a folder, as `path:line name -> callee`."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                call = forwarded_call(node)
                if call is not None:
                    yield f"{path}:{node.lineno} {node.name} -> {ast.unparse(call.func)}"


def forwarded_call(function: Function) -> ast.Call | None:
    """The only call of a function that does nothing else; None if it does more."""
    if function.decorator_list:
        return None
    if function.name.startswith("__"):
        return None
    body = [each for each in function.body if not _is_docstring(each)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return None
    value = body[0].value
    value = value.value if isinstance(value, ast.Await) else value
    if not isinstance(value, ast.Call) or not _is_dotted_name(value.func):
        return None
    given = function.args
    names = {
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
    }
    arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
    if all(_name_of(each) in names or _is_attribute_of_self(each) for each in arguments):
        return value
    return None


def _name_of(node: ast.expr) -> str | None:
    node = node.value if isinstance(node, ast.Starred) else node
    return node.id if isinstance(node, ast.Name) else None


def _is_attribute_of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_dotted_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted_name(node.value))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


if __name__ == "__main__":
    main()
