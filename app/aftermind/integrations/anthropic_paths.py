"""Paths of the memory tool's files: each is the name of a block."""

from aftermind.integrations.framework_imports import extra

with extra("anthropic"):
    from anthropic.lib.tools._beta_functions import ToolError

ROOT = "/memories"


def to_block_name(path: str) -> str:
    """The path without empty labels and `.`. Raises `ToolError` for one outside of the memory directory."""
    if not path.startswith(ROOT):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    labels: list[str] = []
    for label in path.removeprefix(ROOT).split("/"):
        if label == "..":
            if not labels:
                raise ToolError(f"Path {path} would escape {ROOT} directory")
            labels.pop()
        elif label not in ("", "."):
            labels.append(label)
    return "/".join([ROOT, *labels])


def within(path: str, names: list[str]) -> list[str]:
    """The file with that path, or those of the directory with that path."""
    return [each for each in names if each == path or each.startswith(path + "/")]


def check_directories(shown: str, path: str, names: list[str]) -> None:
    """Raises `ToolError` if a file has the name of a directory above the path."""
    for each in names:
        if each != ROOT and path.startswith(each + "/"):
            raise ToolError(f"The path {shown} cannot be used: {each} is a file, not a directory.")
