"""Who may ask, and how the others are refused: hosts, origins, tokens, connections, errors.

Any web site that a person visits can make their browser send requests to a local server. Three
headers, which a script cannot set, tell such requests apart: `Host` (a name that an attacker points
at this machine is none of ours), `Origin` and `Sec-Fetch-Site`. Where other machines reach the
server, a token tells who was invited. Every refusal and error is {"error": "one line"} in JSON.
"""

import http
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import h11
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hlformer_jax.errors import QueryError, UserError
from hlformer_jax.files import jsonable
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.redaction import without_paths

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Hosts of a server that this machine alone reaches."""

HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; object-src 'none';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer: scripts, frames and reading from nowhere but this server."""

REQUEST_SECONDS = 10.0
"""Seconds within which a connection must send a whole request."""

LINES = {
    "Invalid host header": "this server has another name: open the address that it printed, or"
    " start it with --allow-host=NAME",
    "Method Not Allowed": "use GET, and POST to ask by a picture or to change something",
    "Not Found": "there is nothing at this address",
}
"""Messages in place of the frameworks'."""


class ParameterError(UserError, ValueError):
    """A parameter of a request that makes no sense."""


class Answer(JSONResponse):
    """JSON of any value; see `jsonable`."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return super().render(jsonable(content))


class Guard:
    """ASGI middleware: refuses requests of strangers, and turns every error into a line of JSON.

    `hosts` are names without ports under which the server is reached. With `addresses` every IP
    address is one too, for a server that listens on all: only a name can be made to point
    elsewhere. A request must present `token`, unless that is "", as a cookie, as `Authorization:
    Bearer TOKEN`, or once in the address of the page, `/?token=TOKEN`.
    """

    def __init__(
        self,
        application: ASGIApp,
        hosts: Collection[str] = LOOPBACK,
        addresses: bool = False,
        token: str = "",
    ) -> None:
        self.token, self.addresses = token, addresses
        self._inside = application
        self._named = TrustedHostMiddleware(self._admit, sorted(hosts), www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        begun, refusal, said = False, None, b""

        async def guarded(message: Message) -> None:
            nonlocal begun, refusal, said
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                is_json = headers.get("content-type", "") == "application/json"
                if message["status"] >= 400 and not is_json:  # said by a framework
                    refusal = message
                    return
            if refusal is None:
                await send(message)
                return
            said += message.get("body", b"")
            if not message.get("more_body"):
                kept = MutableHeaders(scope=refusal)
                del kept["content-length"], kept["content-type"]
                status = refusal["status"]
                line = said.decode(errors="replace") or http.HTTPStatus(status).phrase
                await _refuse(status, line, dict(kept))(scope, receive, send)

        try:
            host = HTTPConnection(scope).headers.get("host", "")
            entrance = self._admit if self.addresses and _is_address(host) else self._named
            await entrance(scope, receive, guarded)
        except Exception as error:  # whatever it is, the page gets one line and the log the rest
            logging.getLogger(__name__).exception("%s %s", scope["method"], scope["path"])
            if begun:
                raise
            line = f"the server failed ({type(error).__name__}): its terminal says where"
            await _refuse(500, line)(scope, receive, guarded)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on whose host is ours, if its origin and its token are too."""
        if line := self._origin(scope):
            await _refuse(403, line)(scope, receive, send)
        elif self.token and not self._presents_token(scope):
            line = (
                "this server wants a token: open the address that it printed, or send"
                " Authorization: Bearer TOKEN"
            )
            await _refuse(401, line, {"www-authenticate": "Bearer"})(scope, receive, send)
        else:
            await self._inside(scope, receive, self._with_cookie(scope, send))

    def _origin(self, scope: Scope) -> str:
        """Why a request is none of our own page's; "" where it is."""
        headers = HTTPConnection(scope).headers
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope['scheme']}://{headers['host']}":
            return f"requests of {origin[:100]!r} are not answered: open the page of this server"
        site = headers.get("sec-fetch-site", "none")
        # A link to the page from anywhere is welcome: it shows a person what they ask for.
        followed = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in ("same-origin", "none") and not followed:
            return "requests of other sites are not answered: open the page of this server"
        return ""

    def _presents_token(self, scope: Scope) -> bool:
        request = HTTPConnection(scope)
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        presented = [
            request.cookies.get(_cookie(scope), ""),
            bearer.strip() if kind.lower() == "bearer" else "",
            *_tokens_of_address(scope),
        ]
        # All of them, so that the time says nothing.
        equal = [secrets.compare_digest(one.encode(), self.token.encode()) for one in presented]
        return any(equal)

    def _with_cookie(self, scope: Scope, send: Send) -> Send:
        """Gives the browser that opened the printed address a cookie in its place."""
        if not self.token or not _tokens_of_address(scope):
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{_cookie(scope)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        return sending


def install(server: FastAPI, library: Library) -> None:
    """Maps exceptions to HTTP errors; `Guard` does the unexpected ones."""

    async def refused(_: Any, error: Any) -> JSONResponse:
        return _refuse(error.status_code, str(error.detail), error.headers)

    async def misspelt(_: Any, error: Any) -> JSONResponse:
        first = error.errors()[0]
        _, *names = first["loc"]  # of a repeated parameter, its number follows its name
        return _refuse(400, f"{names[0] if names else 'the request'}: {first['msg']}")

    def failed(_: Any, error: Any) -> JSONResponse:  # in a thread: it may read the index
        summary = {}
        with suppress(Exception):
            summary = dict(library.status())
        if isinstance(error, ParameterError):  # of the request alone: its paths are examples
            return _refuse(400, str(error))
        is_field = isinstance(error, QueryError)
        line = error.phrased(schemas.PARAMETERS) if is_field else str(error)
        return _refuse(422, without_paths(line, summary))

    server.add_exception_handler(HTTPException, refused)
    server.add_exception_handler(RequestValidationError, misspelt)
    server.add_exception_handler(UserError, failed)


class Protocol(H11Protocol):
    """HTTP on one connection, which is closed where no whole request comes in `REQUEST_SECONDS`."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        super().on_response_complete()
        self._wait()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # what it has not said yet is not said any more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": "the request is malformed: this is no HTTP"}).encode()
            headers = {**HEADERS, "content-type": "application/json", "connection": "close"}
            headers["content-length"] = str(len(body))
            for event in (
                h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait(self) -> None:
        waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not waiting and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif waiting and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)


def _refuse(status: int, line: str, headers: Any = None) -> Answer:
    return Answer({"error": " ".join(LINES.get(line, line).split())}, status, headers)


def _cookie(scope: Scope) -> str:
    """The cookie's name: browsers share cookies between the ports of a machine."""
    return f"hlformer-{(scope.get('server') or ('', 0))[1]}"


def _tokens_of_address(scope: Scope) -> list[str]:
    """Tokens that the page's address holds, which a person opens."""
    if scope["path"] != "/":
        return []
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [])


def _is_address(host: str) -> bool:
    """Whether a host header is an IP address, with a port or without."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?", host)
    with suppress(ValueError):
        return bool(match and ipaddress.ip_address(match[1] or match[2]))
    return False
