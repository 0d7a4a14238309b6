"""The server of the search page: `serve` listens on an address and runs the application."""

import errno
import ipaddress
import os
import re
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Collection
from pathlib import Path

import publicsuffixlist
import uvicorn

from hlformer_jax import terminal
from hlformer_jax.errors import QueryError, UserError
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.serve import guard
from hlformer_jax.search.serve.app import build_app

TOKEN = re.compile(r"[0-9A-Za-z_.~-]{16,200}")
"""Form of a token: too long to be guessed, with characters that need no quoting in addresses and
cookies."""

HOME_DOMAIN = "home.arpa"
"""Domain of home networks (RFC 8375). It counts as private, although lists of public suffixes
contain it."""

HOST_NAME = re.compile(r"(\*\.)?[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")


class ServeError(UserError, OSError):
    """Error if the server cannot listen on its address."""


def serve(
    library: Library,
    port: int = 8000,
    host: str = "127.0.0.1",
    open_browser: bool = False,
    token_file: Path | None = None,
    no_token: bool = False,
    allow_hosts: Collection[str] = (),
    manage: bool | None = None,
) -> None:
    """Serve the page until Ctrl-C, SIGTERM or SIGHUP.

    Args:
      library: the archive.
      port: port to listen on; 0 chooses a free port.
      host: address to listen on. By default only this machine can connect. With "0.0.0.0" every
        machine of the network can connect if it presents the token.
      open_browser: whether to open the page in a browser.
      token_file: file with the token. By default the token is random if other machines can connect,
        and there is no token otherwise.
      no_token: whether everyone who can connect has access without a token.
      allow_hosts: further host names of the server, without ports; "*.NAME" allows all names below.
      manage: whether everyone with access may change the index and add any folder of this machine.
        By default this is allowed only if no other machine can connect, `allow_hosts` is empty, and
        the request did not come through a proxy.

    Raises:
      QueryError: if `host`, the token or a name of `allow_hosts` is invalid, or `no_token` is given
        together with `token_file` or `manage`.
      ServeError: if the server cannot listen on the port of the address.
    """
    _check_options(host, token_file, no_token, allow_hosts, manage)
    token = "" if token_file is None else _read_token(token_file)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        _listen(listener, host, port)
        address, port = listener.getsockname()[:2]
        bound = ipaddress.ip_address(address)
        host_name = host if family == socket.AF_INET else f"[{host}]"
        hosts = guard.LOOPBACK | {host_name, *allow_hosts}
        machine = socket.gethostname()
        if not bound.is_loopback:
            token = "" if no_token else token or secrets.token_urlsafe(32)
            hosts |= {machine, f"{machine}.local"}
        if manage is None and (allow_hosts or not bound.is_loopback):
            manage = False
        page_host = "127.0.0.1" if bound.is_unspecified else host_name
        place = f":{port}/" + (f"?token={token}" if token else "")
        page = f"http://{page_host}{place}"
        terminal.show(f"the page is at {page} (Ctrl-C ends it)")
        if bound.is_unspecified:
            terminal.show(f"on other machines it is at http://{machine}{place}")
        if not bound.is_loopback:
            who = "with this token" if token else "without a token"
            what = "watch the videos" + (", and index any folder of this machine" if manage else "")
            terminal.show(f"anyone who can reach {host} {who} can {what}")
        _end_on_hangup()
        config = uvicorn.Config(
            build_app(library, hosts, bound.is_unspecified, token, manage), http=guard.Protocol,
            ws="none", log_level="critical", access_log=False, server_header=False,
            log_config=None,  # uvicorn's own would close the logging handlers of this process
            timeout_graceful_shutdown=1,  # seconds; a playing video never closes its connection
        )  # fmt: skip
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            terminal.show("stopped")


def _end_on_hangup() -> None:
    """Let SIGHUP, which a closing terminal sends, end the server as SIGTERM does.

    Otherwise its folder of clips would stay. Under nohup, which ignores SIGHUP, the server goes on.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def _check_options(
    host: str,
    token_file: Path | None,
    no_token: bool,
    allow_hosts: Collection[str],
    manage: bool | None,
) -> None:
    """Check the arguments of `serve`.

    Raises:
      QueryError: if one of them is invalid, or two exclude each other.
    """
    for name in allow_hosts:
        if not HOST_NAME.fullmatch(name):
            raise QueryError(
                "{allow_hosts}={value}: give a name such as nas.local, without a port",
                field="allow_hosts", value=name,
            )  # fmt: skip
        if name.startswith("*.") and _is_public(name[2:]):
            raise QueryError(
                "{allow_hosts}={value} allows names that anyone can register: give a whole name,"
                " or * below your own domain",
                field="allow_hosts", value=name,
            )  # fmt: skip
    if no_token and token_file is not None:
        raise QueryError(
            "{no_token} and {token_file} exclude each other: give one of them", field="no_token"
        )
    if no_token and manage:
        raise QueryError(
            "{manage} with {no_token} would let everyone index and watch any folder of this"
            " machine: leave out one of them",
            field="manage",
        )
    if not host:
        raise QueryError(
            "{host} is empty: give an address, such as 0.0.0.0 for all networks", field="host"
        )


def _listen(listener: socket.socket, host: str, port: int) -> None:
    """Listen on an address; from then on connections wait until the server answers them."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        advice = _advise(error)
        raise ServeError(f"cannot listen on port {port} of {host} ({why}): {advice}") from None
    listener.listen(128)


def _advise(error: Exception) -> str:
    """Return the advice for a server that cannot listen on its address."""
    number = getattr(error, "errno", None)
    # A name that cannot be encoded raises a TypeError or UnicodeError.
    is_unknown_name = isinstance(error, socket.gaierror | TypeError | UnicodeError)
    if is_unknown_name or number in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
        return "choose another host, such as 127.0.0.1"
    if number in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 on, or ask for the rights"
    return "choose another port"


def _is_public(domain: str) -> bool:
    """Return whether anyone can register names directly below a domain, such as com or co.uk."""
    domain = domain.lower().rstrip(".")
    suffixes = publicsuffixlist.PublicSuffixList(accept_unknown=True)
    return suffixes.privatesuffix(domain) is None and domain != HOME_DOMAIN


def _read_token(file: Path) -> str:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            token = opened.read(1000).decode(errors="replace").strip()
            if os.fstat(opened.fileno()).st_mode & 0o077:
                line = f"the token file {file} can be read by other users: run chmod 600 {file}"
                terminal.warn(line)
    except OSError as error:
        raise QueryError(
            "{token_file}={path} cannot be read ({reason})",
            field="token_file", path=file, reason=error.strerror,
        ) from None  # fmt: skip
    if not TOKEN.fullmatch(token):
        raise QueryError(
            "{token_file}={path} has no valid token: give one line of 16 to 200 letters, digits or"
            " characters of -_.~",
            field="token_file", path=file,
        )  # fmt: skip
    return token
