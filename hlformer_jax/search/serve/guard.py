"""Access control of the server: hosts, origins, tokens and connections, and its error messages.

Any web site can make a visitor's browser send requests to a local server. Three headers, which no
script can set, reveal such requests: `Host` (an attacker can point a domain at this machine, but
that domain is not a host name of the server), `Origin` and `Sec-Fetch-Site`. If other machines can
connect, a token identifies invited people. Every error is sent as JSON, {"error": "one line"}; a
`Refusal` adds its code and values. Only a browser that opens the page without the token gets HTML.
"""

import html
import http
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any, get_origin
from urllib.parse import parse_qs

import h11
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hlformer_jax.errors import QueryError, UserError
from hlformer_jax.files import jsonable
from hlformer_jax.search.index import MissingIndexError
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.serve.redaction import summarise, without_paths
from hlformer_jax.search.serve.refusals import Refusal
from hlformer_jax.text import printable, suggestion

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Host names of a server that only this machine can reach."""

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
"""Headers of every response.

The page loads files from this server only. Pages of other sites cannot embed or read responses.
"""

REQUEST_SECONDS = 10.0
"""Seconds within which a connection must send a complete request."""

LINES = {
    "Invalid host header": "this server does not accept this host name: open the address that it"
    " printed, or start it with --allow-host=NAME",
    "Method Not Allowed": "use GET, or POST to search by a picture or to change the index",
    "Not Found": "this address does not exist",
}
"""Messages that replace those of Starlette, by the replaced message."""


class ParameterError(UserError, ValueError):
    """A parameter of a request with a wrong value."""


def check_parameters(request: Request) -> None:
    """Check that the address of a request has known parameters, and repeats lists alone.

    Otherwise a filter with a wrong name would be ignored in silence, and so would a body.

    Raises:
      ParameterError: if a parameter is unknown, or repeated without being a list, or in the body.
    """
    route = request.scope["route"]
    if not route.include_in_schema:  # the page, whose address may contain anything
        return
    fields = {field.alias: field for field in route.dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in fields:
            hint = suggestion(name, fields) or f": give {', '.join(fields) or 'none'}"
            raise ParameterError(f"{name}: there is no such parameter{hint}")
        is_list = get_origin(fields[name].field_info.annotation) is tuple
        if names.count(name) > 1 and not is_list:
            raise ParameterError(f"{name}: give it once, not {names.count(name)} times")
    length = request.headers.get("content-length", "0")
    has_body = length != "0" or "transfer-encoding" in request.headers
    if request.method == "POST" and has_body and not route.openapi_extra:
        raise ParameterError(
            f"the request has a body, which {route.path} does not read: give its parameters"
            f" ({', '.join(fields) or 'none'}) in the address"
        )


class Answer(JSONResponse):
    """A JSON response whose content `jsonable` converts to types of JSON."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return super().render(jsonable(content))


class Guard:
    """ASGI middleware that refuses unauthorised requests and sends every error as a line of JSON.

    Args:
      application: the application to protect.
      hosts: accepted host names, without ports.
      any_address: whether to accept every IP address as a host, for a server that listens on all
        addresses. This is safe because an attacker can point a domain at this machine, but cannot
        take over its IP address.
      token: token that a request must present as a cookie, as `Authorization: Bearer TOKEN`, or in
        the address of the page, `/?token=TOKEN`; "" for none.
    """

    def __init__(
        self,
        application: ASGIApp,
        hosts: Collection[str] = LOOPBACK,
        any_address: bool = False,
        token: str = "",
    ) -> None:
        self.token, self.any_address = token, any_address
        self._inside = application
        self._named = TrustedHostMiddleware(self._admit, sorted(hosts), www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        has_started, refusal, body = False, None, b""

        async def guarded(message: Message) -> None:
            nonlocal has_started, refusal, body
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                kind = headers.get("content-type", "").partition(";")[0]
                is_final = kind in ("application/json", "text/html")
                if message["status"] >= 400 and not is_final:  # an error of Starlette
                    refusal = message
                    return
            if refusal is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                headers = MutableHeaders(scope=refusal)
                del headers["content-length"], headers["content-type"]
                status = refusal["status"]
                line = body.decode(errors="replace") or http.HTTPStatus(status).phrase
                await _refuse(status, line, dict(headers))(scope, receive, send)

        try:
            host = HTTPConnection(scope).headers.get("host", "")
            entrance = self._admit if self.any_address and _is_address(host) else self._named
            await entrance(scope, receive, guarded)
        except Exception as error:  # the page shows one line, the log the traceback
            logging.getLogger(__name__).exception(
                "%s %s", scope["method"], printable(scope["path"])
            )
            if has_started:
                raise
            failure = Refusal("server", error=type(error).__name__)
            await _answer(failure)(scope, receive, guarded)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check origin and token of a request with an accepted host, and pass it on."""
        if line := self._refuse_origin(scope):
            await _refuse(403, line)(scope, receive, send)
        elif self.token and not self._presents_token(scope):
            refusal = Refusal("token", {"www-authenticate": "Bearer"})
            accepted = HTTPConnection(scope).headers.get("accept", "")
            is_browser = scope["path"] == "/" and "text/html" in accepted
            answer = _page(refusal) if is_browser else _answer(refusal)
            await answer(scope, receive, send)
        else:
            await self._inside(scope, receive, self._with_cookie(scope, send))

    def _refuse_origin(self, scope: Scope) -> str:
        """Return an error line if a request is not from the server's own page, or else ""."""
        headers = HTTPConnection(scope).headers
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope['scheme']}://{headers['host']}":
            return f"requests from {origin[:100]!r} are refused: open the page of this server"
        site = headers.get("sec-fetch-site", "none")
        # Other sites may link to the page.
        is_link = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in ("same-origin", "none") and not is_link:
            return "requests from other sites are refused: open the page of this server"
        return ""

    def _presents_token(self, scope: Scope) -> bool:
        request = HTTPConnection(scope)
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        presented = [
            request.cookies.get(_cookie(scope), ""),
            bearer.strip() if kind.lower() == "bearer" else "",
            *_tokens_of_address(scope),
        ]
        # Compare all presented tokens in constant time, so that the duration reveals nothing.
        equal = [secrets.compare_digest(text.encode(), self.token.encode()) for text in presented]
        return any(equal)

    def _with_cookie(self, scope: Scope, send: Send) -> Send:
        """Return `send`, extended to set the cookie if the page's address contained the token."""
        if not self.token or not _tokens_of_address(scope):
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{_cookie(scope)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        return sending


def install(server: FastAPI, library: Library) -> None:
    """Install handlers that turn expected exceptions into JSON errors.

    `Guard` handles unexpected exceptions.

    Args:
      server: the application.
      library: the archive, whose paths are removed from error lines.
    """

    async def refused(request: Any, error: Any) -> JSONResponse:
        if isinstance(error, Refusal):
            return _answer(error)
        headers = error.headers
        if error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": ", ".join(_allowed_methods(server, request.scope))}
        return _refuse(error.status_code, str(error.detail), headers)

    async def invalid(_: Any, error: Any) -> JSONResponse:
        first = error.errors()[0]
        _, *names = first["loc"]  # ("query", name), and an index if the parameter is repeated
        return _refuse(400, f"{names[0] if names else 'the request'}: {first['msg']}")

    def failed(_: Any, error: Any) -> JSONResponse:  # not async: it runs in a thread to read files
        if isinstance(error, ParameterError):  # never contains paths of this machine
            return _refuse(400, str(error))
        if isinstance(error, MissingIndexError):
            return _answer(Refusal("index.missing", index=library.directory.resolve().name))
        summary = summarise(library)
        if isinstance(error, QueryError):
            line = without_paths(error.phrased(schemas.PARAMETERS), summary)
            return _refuse(422, line, code=f"query.{error.field}")
        return _refuse(422, without_paths(str(error), summary))

    server.add_exception_handler(HTTPException, refused)
    server.add_exception_handler(RequestValidationError, invalid)
    server.add_exception_handler(UserError, failed)


class Protocol(H11Protocol):
    """An HTTP connection that is closed if no complete request arrives in `REQUEST_SECONDS`."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data; cancel the time limit if the request is complete."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Start the time limit of the next request."""
        super().on_response_complete()
        self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP with a JSON error, and close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # drop the response to an earlier request
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": "the request is malformed: send HTTP"}).encode()
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


def _allowed_methods(server: FastAPI, scope: Scope) -> list[str]:
    """Return the methods of an address; Starlette only knows those of the first route it finds."""
    return [
        method
        for method in ("GET", "HEAD", "POST")
        if any(
            route.matches({**scope, "method": method})[0] == Match.FULL for route in server.routes
        )
    ]


def _refuse(status: int, line: str, headers: Any = None, **more: Any) -> Answer:
    return Answer({"error": " ".join(LINES.get(line, line).split()), **more}, status, headers)


def _answer(refusal: Refusal) -> Answer:
    code, values = refusal.code, refusal.values
    return _refuse(refusal.status_code, refusal.detail, refusal.headers, code=code, values=values)


def _page(refusal: Refusal) -> HTMLResponse:
    """Return an error as a page for a browser, because the page itself needs the token."""
    content = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hlformer</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<h1>hlformer</h1><p>{html.escape(refusal.detail)}</p></html>"
    )
    return HTMLResponse(content, refusal.status_code, refusal.headers)


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie.

    It contains the port, because browsers share cookies between the ports of a host.
    """
    return f"hlformer-{(scope.get('server') or ('', 0))[1]}"


def _tokens_of_address(scope: Scope) -> list[str]:
    """Return the tokens in the address of the page, `/?token=TOKEN`; [] for other addresses."""
    if scope["path"] != "/":
        return []
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [])


def _is_address(host: str) -> bool:
    """Return whether a host header is an IP address, with or without a port."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?", host)
    with suppress(ValueError):
        return bool(match and ipaddress.ip_address(match[1] or match[2]))
    return False
