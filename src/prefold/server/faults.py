"""Faults: the framework's own refusals, in the shape of all other errors."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from prefold.server.errors import HttpError, to_response
from prefold.server.validation import to_http_error


def install_fault_handlers(app: FastAPI) -> None:
    """Let an application answer invalid bodies and unknown routes like other errors."""
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_unrouted)


async def _answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    return to_response(to_http_error(error.errors()))


async def _answer_unrouted(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            message = "there is no such route; see /openapi.json for those there are"
        case 405:
            message = f"this route takes {headers.get('Allow', 'other methods')} only"
        case 400:
            message = "the body could not be read as JSON; a number in it may be too long"
        case _:
            message = "the request could not be answered"
    return to_response(HttpError(error.status_code, message, headers=headers))
