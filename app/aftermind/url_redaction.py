"""URLs in errors, without the passwords in them."""

import re

ENCODE = (
    "percent-encode special characters in user, password, path and options: "
    "`/` is %2F, `?` is %3F, `#` is %23, `@` is %40"
)
_NO_HOST = "what follows its `:` is not a port; an `@` ends user and password, and the host follows it"
_PASSWORD_OPTION = re.compile(
    r"([?&][^=&]*(?:passw(?:or)?d|secret|token|api_?key)[^=&]*=)(.*)", re.IGNORECASE | re.DOTALL
)
# Between the nodes of a broker
_NEXT_URL = re.compile(r";(?=(?:(?:py)?amqps?(?:\+ssl)?|rediss?|sentinel)://)", re.IGNORECASE)
_PLACE = re.compile(r"(?:\[[^]]*\]|[^:\[\]]*)(?::(\d*))?")  # host and port


def redact(url: str) -> str:
    """The URL without user, password and what follows the name of an option for passwords, which may have a `&`;
    `;` separates several URLs. A host with what is not a port is left out: it may be user and password.
    """
    return ";".join(map(_redact_one, _NEXT_URL.split(url)))


def why_unreadable(url: str, exc: ValueError) -> str:
    """Why the URL cannot be read, without a part of its password: the error may name one if the password seems to end
    earlier than it does, or has what no host has.
    """
    if _lacks_host(url):
        return f"it is not a URL: {_NO_HOST}."
    authority, rest = _split(url)
    option = _PASSWORD_OPTION.search(rest)
    may_name_it = (
        ("@" in rest and ":" in _login(url))
        or (option and "&" in option[2])
        or re.search(r"[\[\]]|[^\x00-\x7f]", authority.rpartition("@")[0])
    )
    return f"it is not a URL: {ENCODE if may_name_it else exc}."


def is_cut(url: str, *, may_be_key: bool = False) -> bool:
    """Whether user and password seem to end at a `/`, which makes host and port of them and a path of the host.

    Without a `:` there is no password, and an `@` is one of the path; but for `may_be_key`, a key in place of both.
    """
    authority, rest = _split(url)
    path = rest.partition("?")[0]
    login = authority + path.rpartition("@")[0]
    return bool(authority) and "@" not in authority and "@" in path and (may_be_key or ":" in login)


def _split(url: str) -> tuple[str, str]:
    """The authority, with user and password, and what follows it."""
    after = url.partition("://")[2]
    authority = re.split("[/?#]", after, maxsplit=1)[0]
    return authority, after[len(authority) :]


def _login(url: str) -> str:
    """All that may be user and password."""
    return url.partition("://")[2].rpartition("@")[0]


def _lacks_host(url: str) -> bool:
    """Whether the URL seems to end within user and password: there is no `@`, and what follows a `:` is not a port."""
    return "@" not in url and not all(map(_is_place, _split(url)[0].split(",")))


def _is_place(text: str) -> bool:
    place = _PLACE.fullmatch(text)
    return place is not None and int(place[1] or 0) < 65_536


def _redact_one(url: str) -> str:
    if _lacks_host(url):
        return f"{url.partition('://')[0]}://…"
    head, at, tail = url.rpartition("@")
    scheme, separator, _ = head.partition("://")
    # A malformed one may have a password where the scheme belongs.
    without_login = f"{scheme + separator if separator else ''}…@{tail}" if at else tail
    return _PASSWORD_OPTION.sub(r"\1…", without_login)
