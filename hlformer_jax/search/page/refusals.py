"""Errors as the page takes them: {"error": one line}, with the status that says whose fault."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from hlformer_jax.errors import UserError

KNOWN = {"Not Found": "there is nothing at this address", "Method Not Allowed": "use GET"}
"""Plain words for what the framework says."""


class PageError(UserError, ValueError):
    """A parameter of a request that makes no sense."""


def install(server: FastAPI) -> None:
    """Makes a server answer errors in that way; `guard.Guard` does the unexpected ones."""
    server.add_exception_handler(HTTPException, _refused)
    server.add_exception_handler(RequestValidationError, _misspelt)
    server.add_exception_handler(UserError, _wrong)


async def _refused(_: Request, error: Any) -> Response:
    line = KNOWN.get(error.detail, error.detail)
    return JSONResponse({"error": line}, error.status_code, error.headers)


async def _misspelt(_: Request, error: Any) -> Response:
    first = error.errors()[0]
    return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 400)


async def _wrong(_: Request, error: Any) -> Response:
    status = 400 if isinstance(error, PageError) else 422
    return JSONResponse({"error": " ".join(str(error).split())}, status)
