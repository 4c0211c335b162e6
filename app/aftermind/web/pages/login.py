"""Signing in: a browser shows a key once, and keeps it in a cookie that no script can read."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind import errors
from aftermind.api import local_web_token
from aftermind.web import auth
from aftermind.web.pages import rendering

COOKIE_LIFETIME = timedelta(days=30)  # a key that is revoked or expires before closes the screens before

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/login", response_model=None)
async def ask(request: Request, next: str = "/", token: str = "") -> HTMLResponse | RedirectResponse:
    """The form; with the local token, as `aftermind up` prints it in a link, straight to the screens."""
    if token.startswith(local_web_token.PREFIX):
        return await sign_in(request, token, next)
    return rendering.page(request, "login.html", here="", next=_own(next), refused=None)


@router.post("/login", response_model=None)
async def sign_in(
    request: Request, key: Annotated[str, Form()], next: Annotated[str, Form()] = "/"
) -> HTMLResponse | RedirectResponse:
    """Store a valid key in a cookie; show the form again for an invalid one."""
    try:
        await auth.admit(request, key.strip() or "none")
    except errors.KeyRefused:
        told = "API key is unknown, revoked or expired."
        return rendering.page(request, "login.html", status=401, here="", next=_own(next), refused=told)
    answer = RedirectResponse(_own(next), status_code=303, headers=dict(rendering.HEADERS))
    answer.set_cookie(
        auth.COOKIE,
        key.strip(),
        max_age=int(COOKIE_LIFETIME.total_seconds()),
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, urlsplit(request.headers.get("origin", "")).scheme),  # of a proxy's TLS
    )
    return answer


@router.post("/logout", response_model=None)
async def sign_out() -> RedirectResponse:
    """Forget the key."""
    answer = RedirectResponse("/login", status_code=303, headers=dict(rendering.HEADERS))
    for name in (auth.COOKIE, auth.NAMESPACE_COOKIE):
        answer.delete_cookie(name, httponly=True, samesite="strict")
    return answer


def _own(path: str) -> str:
    """A path of this service; anything else leads to the overview, for a link can have any target."""
    is_own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_own else "/"
