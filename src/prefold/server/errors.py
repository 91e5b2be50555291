"""Errors: what a client is told when a request cannot be served, as OpenAI words it.

::

    {"error": {"message": "...", "type": "...", "param": null, "code": null}}

The message says what to change. It never repeats what was sent: a value may be a prompt,
a salt or a key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from prefold.errors import (
    CapacityError,
    EngineBrokenError,
    EngineStoppedError,
    IncompatibleModelError,
    InvalidInputError,
    ModelChangedError,
    NameInUseError,
    PrefoldError,
    SwapUnderWayError,
    UnknownAdapterError,
)
from prefold.server.credentials import AuthenticationError
from prefold.server.limits import RateLimitedError

#: Seconds after which to try again, where nothing better is known.
_RETRY_AFTER_S = 1.0

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


_CONFLICTS: Mapping[type, str] = {
    IncompatibleModelError: "incompatible_model",
    SwapUnderWayError: "swap_under_way",
    NameInUseError: "name_in_use",
}


class HttpError(Exception):
    """An answer that is no success: a status, and a sentence that says what to change.

    Attributes:
        param: The field at fault, where it is one.
        code: A word for programs.
        retry_after_s: Seconds after which the same request may work.
        headers: More headers of the answer.
    """

    def __init__(  # noqa: PLR0913 -- the fields of an error, all but two by name
        self,
        status: int,
        message: str,
        *,
        error_type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type or _type_of(status)
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})


def to_http_error(error: PrefoldError | HttpError) -> HttpError:
    """Return what an error means to a client.

    An error that is not meant for clients becomes a plain 500.
    """
    found = internal_error()
    match error:
        case HttpError():
            found = error
        case AuthenticationError():
            challenge = {"www-authenticate": "Bearer"}
            found = HttpError(401, str(error), code="invalid_api_key", headers=challenge)
        case RateLimitedError(retry_after_s=wait_s):
            found = HttpError(
                429, str(error), code="rate_limit_exceeded", retry_after_s=wait_s
            )
        case IncompatibleModelError() | SwapUnderWayError() | NameInUseError():
            found = HttpError(409, str(error), code=_CONFLICTS[type(error)])
        case ModelChangedError():
            found = HttpError(
                503,
                "the model is being replaced; send the request again",
                code="model_replaced",
                retry_after_s=_RETRY_AFTER_S,
            )
        case UnknownAdapterError():
            found = HttpError(
                404,
                "there is no such model any more; ask for the list of models",
                param="model",
                code="model_not_found",
            )
        case InvalidInputError():
            found = HttpError(400, str(error))
        case CapacityError():
            found = HttpError(
                503, str(error), code="overloaded", retry_after_s=_RETRY_AFTER_S
            )
        case EngineStoppedError():
            found = broken() if isinstance(error, EngineBrokenError) else stopped()
    return found


def stopped() -> HttpError:
    """Return the answer of a server that ends or has ended."""
    return HttpError(
        503,
        "the server is shutting down; try again later",
        code="shutting_down",
        retry_after_s=_RETRY_AFTER_S,
    )


def broken() -> HttpError:
    """Return the answer of a server whose engine a bug has ended."""
    return HttpError(
        503,
        "the server has broken down and has to be restarted; its log names the reason",
        code="broken",
        retry_after_s=_RETRY_AFTER_S,
    )


def internal_error() -> HttpError:
    """Return the answer to a bug. It says nothing of what happened: that is in the log."""
    return HttpError(
        500,
        "the server failed to answer this request; its log names the reason under the "
        "x-request-id of this answer",
        code="internal_error",
    )


def to_body(error: PrefoldError | HttpError) -> dict[str, Any]:
    """Return the JSON object of an error."""
    found = to_http_error(error)
    return {
        "error": {
            "message": found.message,
            "type": found.error_type,
            "param": found.param,
            "code": found.code,
        }
    }


def to_response(error: PrefoldError | HttpError) -> JSONResponse:
    """Return the whole answer, its headers included."""
    found = to_http_error(error)
    headers = dict(found.headers)
    if found.retry_after_s is not None:
        # Whole seconds are all the header has, and zero would be "at once".
        headers["retry-after"] = str(max(1, math.ceil(found.retry_after_s)))
    return JSONResponse(to_body(found), status_code=found.status, headers=headers)


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")
