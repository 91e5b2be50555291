from __future__ import annotations

import json

import pytest

from prefold.errors import (
    CapacityError,
    ConfigError,
    EngineStoppedError,
    LeaseReleasedError,
    OutOfBlocksError,
    PrefoldError,
    QueueFullError,
    RequestError,
)
from prefold.server.credentials import AuthenticationError
from prefold.server.errors import HttpError, to_response
from prefold.server.limits import RateLimitedError


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("no"), 400, "invalid_request_error"),
        (ConfigError("no"), 400, "invalid_request_error"),
        (AuthenticationError("no"), 401, "authentication_error"),
        (RateLimitedError("no", 2.1), 429, "rate_limit_error"),
        (QueueFullError("no"), 503, "server_error"),
        (CapacityError("no"), 503, "server_error"),
        (OutOfBlocksError(3, 1), 503, "server_error"),
        (EngineStoppedError("no"), 503, "server_error"),
        (LeaseReleasedError("a secret"), 500, "server_error"),
        (PrefoldError("a secret"), 500, "server_error"),
        (HttpError(418, "no"), 418, "invalid_request_error"),
    ],
)
def test_every_error_has_a_status_and_the_same_shape(
    error: PrefoldError | HttpError, status: int, kind: str
) -> None:
    response = to_response(error)
    body = json.loads(bytes(response.body))
    assert response.status_code == status
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == kind
    assert "secret" not in str(body)
    assert ("retry-after" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize(("wait_s", "header"), [(0.0, "1"), (0.2, "1"), (2.1, "3")])
def test_a_wait_is_told_in_whole_seconds(wait_s: float, header: str) -> None:
    assert to_response(RateLimitedError("no", wait_s)).headers["retry-after"] == header


def test_who_has_no_key_is_told_how_to_send_one() -> None:
    response = to_response(AuthenticationError("no"))
    assert response.headers["www-authenticate"] == "Bearer"
