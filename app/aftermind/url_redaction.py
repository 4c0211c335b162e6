"""URLs in errors, without the passwords in them."""

import re

ENCODE = (
    "percent-encode special characters in user, password and options: `/` is %2F, `?` is %3F, `#` is %23, `@` is %40"
)
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*password[^=&]*=)[^&]*", re.IGNORECASE)


def redact(url: str) -> str:
    """The URL without user, password and the values of options for passwords; `;` separates several URLs."""
    return ";".join(map(_redact_one, re.split(r";(?=\w+://)", url)))


def why_unreadable(url: str, exc: ValueError) -> str:
    """Why the URL cannot be read, without a part of its password: the error may name one if the password cuts the URL,
    or has what no host has.
    """
    authority, rest = _split(url)
    login = authority.rpartition("@")[0]
    may_name_it = "@" in rest or re.search(r"[\[\]]|[^\x00-\x7f]", login)
    return f"it is not a URL: {ENCODE if may_name_it else exc}."


def is_cut(url: str) -> bool:
    """Whether user and password seem to end at a `/`, which makes host and port of them and a path of the host."""
    authority, rest = _split(url)
    return bool(authority) and "@" not in authority and "@" in rest.partition("?")[0]


def _split(url: str) -> tuple[str, str]:
    """The authority, with user and password, and what follows it."""
    after = url.partition("://")[2]
    authority = re.split("[/?#]", after, maxsplit=1)[0]
    return authority, after[len(authority) :]


def _redact_one(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, separator, _ = head.partition("://")
    # A malformed one may have a password where the scheme belongs.
    without_login = f"{scheme + separator if separator else ''}…@{tail}" if at else tail
    return _PASSWORD_OPTION.sub(r"\1…", without_login)
