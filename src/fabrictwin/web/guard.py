"""What stands before every request: who may ask, from where, and how much.

A page in the same browser must not reach this server: names that resolve to it later (DNS rebinding) are
refused by the `Host` header, other sites by `Origin` and `Sec-Fetch-Site`. A server that others reach asks for
a token. Bodies have a limit, whether or not they say how long they are, and a time to arrive in.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fabrictwin.base.records import record

COOKIE = "fabrictwin"
MOST_BODY_BYTES = 4 * 2**20  # of a request; a file that is uploaded has its own limit
BODY_S = 60.0  # for a body to arrive
TOO_LONG = "the body is too long"
TOO_SLOW = "the body did not come"
SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@record
class Access:
    """Who may ask: the names that the server answers to, and the token where it asks for one."""

    port: int
    names: tuple[str, ...] = ()  # beside addresses and localhost
    token: str = ""


class TooLongError(Exception):
    """A body is longer than it may be; whoever reads it answers with 413."""


class TooSlowError(Exception):
    """A body did not arrive within BODY_S; whoever reads it answers with 408."""


class Guard:
    """ASGI middleware that refuses what should not be asked, and adds headers to what is answered."""

    def __init__(self, app: ASGIApp, access: Access, most_file_bytes: int) -> None:
        self._app, self._access, self._most_file = app, access, most_file_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        left, whole = self._most(scope), False
        end = asyncio.get_running_loop().time() + BODY_S

        async def measured() -> Message:
            nonlocal left, whole
            if whole:  # what comes now is that the other side has gone, whenever that is
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise TooSlowError from None
            whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooLongError
            return message

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, measured, answered)

    def _most(self, scope: Scope) -> int:
        """Bytes that a body may have."""
        return self._most_file if scope["path"].startswith("/api/files/") else MOST_BODY_BYTES

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._known(host):
            return 421, "this server does not answer to that name"
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope['scheme']}://{host}":
            return 403, "another origin may not ask"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not _opened(scope, headers):
            return 403, "another site may not ask"
        if not self._allowed(scope, headers):
            return 401, "expected a token: open the address that the server printed, or send Authorization: Bearer"
        if not scope["query_string"].isascii():
            return 400, "expected an address in ASCII"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > self._most(scope):
            return 413, TOO_LONG
        kind = headers.get("content-type", "").partition(";")[0].strip()
        body = length != "0" or "transfer-encoding" in headers
        wanted = "application/octet-stream" if scope["path"].startswith("/api/files/") else "application/json"
        if scope["method"] not in SAFE and body and kind != wanted:
            return 415, f"expected content-type {wanted}"
        return None

    def _known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.username is not None or parts.path or (port or 80) != self._access.port:
            return False
        if name in ("localhost", *self._access.names):
            return True
        try:
            ipaddress.ip_address(name)  # an address is what it is, and nobody's DNS
        except ValueError:
            return False
        return True

    def _allowed(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        token = self._access.token
        if not token:
            return True
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            given += [cookie.value] if cookie is not None else []
        except CookieError:
            pass
        if scope["path"] == "/":
            given += parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return any(hmac.compare_digest(one.encode(), token.encode()) for one in given)


def _opened(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Return true where a person follows a link to the page, which changes nothing."""
    return bool(
        scope["path"] == "/" and scope["method"] in SAFE and headers.get("sec-fetch-mode", "") == "navigate"
    )


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"errors": [{"message": message, "key": None, "line": None, "file": None}]}).encode()
    headers = {
        **HEADERS,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
