"""Settings by namespace: a JSON object whose keys are namespaces, or beginnings of them with a final `*`. Pure."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from aftermind import errors

T = TypeVar("T")


def match_rule(rules: Mapping[str, T], namespace: str) -> T | None:
    """The value for a namespace: by its name, else by the longest beginning; None if no rule matches."""
    if namespace in rules:
        return rules[namespace]
    fitting = [rule for rule in rules if rule.endswith("*") and namespace.startswith(rule[:-1])]
    return rules[max(fitting, key=len)] if fitting else None


def check_rules(variable: str, rules: Iterable[str]) -> None:
    """Raise `InvalidSettings` for a rule that is neither a namespace nor a beginning of namespaces."""
    for rule in rules:
        if not rule or "*" in rule[:-1]:
            why = "a rule is a namespace, or the beginning of namespaces and a final `*`."
            raise errors.InvalidSettings(variable, rule, why)
