"""Who may ask: the hosts and origins that are answered, and the headers of every answer.

Any web site that a person visits can make their browser send requests to a local server. Three
headers, which a script cannot set, tell such requests apart: `Host` (a name that an attacker points
at this machine is none of ours), `Origin` and `Sec-Fetch-Site`.
"""

import ipaddress
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names of a server that this machine alone reaches."""

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; media-src 'self'; object-src 'none';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer: scripts, frames and reading from nowhere but this server."""


class Guard:
    """ASGI middleware that refuses requests of other sites, and turns a crash into one line.

    Attributes:
      application: the server behind it.
      hosts: host names that are answered, without ports, in lower case.
      addresses: whether every IP address is answered as a host, for a server that listens on all:
        only a name can be made to point elsewhere.
    """

    def __init__(
        self, application: ASGIApp, hosts: Collection[str] = LOOPBACK, addresses: bool = False
    ) -> None:
        self.application = application
        self.hosts = frozenset(host.lower() for host in hosts)
        self.addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        if refusal := self.refusal(scope):
            await JSONResponse({"error": refusal}, 403)(scope, receive, guarded)
            return
        try:
            await self.application(scope, receive, guarded)
        except Exception as error:  # whatever it is, the page gets one line and the log the rest
            logging.getLogger(__name__).exception("%s %s", scope["method"], scope["path"])
            if begun:
                raise
            line = f"the server failed ({type(error).__name__}): its terminal says where"
            await JSONResponse({"error": line}, 500)(scope, receive, guarded)

    def refusal(self, scope: Scope) -> str:
        """Says why a request is refused; "" where it is answered."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"this server is not {host[:100]!r}: open it by the address that it printed"
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope.get('scheme', 'http')}://{host}":
            return f"requests of {origin[:100]!r} are not answered: open the page of this server"
        site = headers.get("sec-fetch-site", "none")
        # A link to the page from anywhere is welcome: it shows a person what they ask for.
        followed = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in ("same-origin", "none") and not followed:
            return "requests of other sites are not answered: open the page of this server"
        return ""

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname, parts.port  # a port that is none raises
        except ValueError:
            return False
        if name is None or parts.username is not None or parts.path or parts.query:
            return False
        return name in self.hosts or (self.addresses and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
