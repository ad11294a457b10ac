"""The server: routes, what stands before them, the page's files, and its life from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.process.interrupt import serving
from fabrictwin.base.records import record
from fabrictwin.web.guard import COOKIE, TOO_LONG, Access, Guard, TooLongError
from fabrictwin.web.interface import openapi, refused, routes
from fabrictwin.web.operations import operations
from fabrictwin.web.service import Service, Setting
from fabrictwin.web.uploads import MOST_FILE_BYTES

CONNECTIONS = 128
GRACE_S = 2
MEDIA = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@cache
def page_files() -> dict[str, tuple[bytes, str]]:
    """Content and type of every file of the page by its path; nothing else is ever served as one."""
    found: dict[str, tuple[bytes, str]] = {}
    places = (("fabrictwin.web", "static"), ("fabrictwin.report", "assets"))
    for package, folder in places:
        for entry in resources.files(package).joinpath(folder).iterdir():
            ending = "." + entry.name.rpartition(".")[2]
            if ending in MEDIA:
                found[f"/{entry.name}"] = (entry.read_bytes(), f"{MEDIA[ending]}; charset=utf-8")
    found["/"] = found.pop("/index.html")
    return found


def make_app(service: Service, access: Access) -> ASGIApp:
    """The application over a service."""
    asked = operations(service)
    document = openapi(asked)

    async def described(request: Request) -> Response:
        return JSONResponse(document)

    async def page(request: Request) -> Response:
        if request.url.path == "/" and "token" in request.query_params:
            answer: Response = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, access.token, httponly=True, samesite="strict")
            return answer
        content, media = page_files()[request.url.path]
        return Response(content, media_type=media)

    async def too_long(request: Request, error: Exception) -> Response:
        return refused(413, [TOO_LONG], connection="close")

    async def not_there(request: Request, error: Exception) -> Response:
        return refused(404, ["there is nothing here"])

    async def not_that_way(request: Request, error: Exception) -> Response:
        return refused(405, ["this cannot be asked in that way"])

    @contextlib.asynccontextmanager
    async def life(app: Any) -> AsyncIterator[None]:
        service.attend()
        warming = asyncio.create_task(asyncio.to_thread(service.warm))
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)
            await asyncio.wait([warming])

    app = Starlette(
        routes=[
            *routes(asked),
            Route("/openapi.json", described),
            *(Route(path, page) for path in page_files()),
        ],
        exception_handlers={TooLongError: too_long, 404: not_there, 405: not_that_way},
        lifespan=life,
    )
    return Guard(app, access, MOST_FILE_BYTES)


@record
class Address:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 8765
    names: tuple[str, ...] = ()  # that it answers to, beside addresses and localhost
    token: str | None = None  # None: one of its own where others reach it

    @property
    def loopback(self) -> bool:
        """Return true where only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _listening(address: Address) -> socket.socket:
    try:
        kind, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(kind, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(place)
        opened.listen(CONNECTIONS)
    except OSError as error:
        message = f"cannot listen on {quoted(address.host)}:{address.port}: {error.strerror or error}"
        raise ConfigError(message, key="--port") from None
    except UnicodeError:  # of a name that no name server could be asked for
        raise ConfigError(f"got {quoted(address.host)}, expected a name or an address", key="--host") from None
    return opened


def serve(setting: Setting, address: Address, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is told the address to open. Raises ConfigError where it cannot listen."""
    import uvicorn

    from fabrictwin.web.connections import BoundedProtocol

    opened = _listening(address)
    port = int(opened.getsockname()[1])
    token = address.token or ("" if address.loopback else secrets.token_urlsafe(24))
    service = Service(setting)
    app = make_app(service, Access(port, address.names, token))
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )
    shown = f"[{address.host}]" if ":" in address.host else address.host
    url = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    ready(url)
    try:
        with serving(), contextlib.suppress(KeyboardInterrupt):  # which is how a server ends
            uvicorn.Server(config).run(sockets=[opened])
    finally:
        service.close()
