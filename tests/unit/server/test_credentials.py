from __future__ import annotations

import copy
import hmac
import os
import stat
from pathlib import Path

import pytest

from prefold.errors import ConfigError
from prefold.server.config import LOCAL_TENANT, TenantConfig
from prefold.server.credentials import (
    AdminToken,
    AuthenticationError,
    Authenticator,
    Caller,
    default_token_path,
)
from prefold.server.keys import KeyFile
from support.settable_clock import SettableClock

ACME, GLOBEX = TenantConfig(name="acme"), TenantConfig(name="globex", domain="g/x")


@pytest.fixture
def now() -> SettableClock:
    return SettableClock(1000.0)


@pytest.fixture
def key_file(tmp_path: Path, now: SettableClock) -> KeyFile:
    return KeyFile(tmp_path / "keys.json", now=now)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "admin_token"


def _refusal(authenticator: Authenticator, authorization: str | None) -> str:
    with pytest.raises(AuthenticationError) as caught:
        authenticator.authenticate(authorization)
    return str(caught.value)


@pytest.mark.parametrize("authorization", [None, "", "Bearer x", "Basic eDp5", "\xff"])
def test_without_tenants_everybody_is_the_local_one(authorization: str | None) -> None:
    authenticator = Authenticator()
    assert not authenticator.needs_key
    assert authenticator.authenticate(authorization) == Caller(
        tenant=LOCAL_TENANT, key_id=None
    )


def test_tenants_need_a_key_file() -> None:
    with pytest.raises(ConfigError, match="need a key file"):
        Authenticator((ACME,))


def test_a_key_leads_to_its_tenant(key_file: KeyFile) -> None:
    authenticator = Authenticator((ACME, GLOBEX), key_file)
    assert authenticator.needs_key
    for tenant in (ACME, GLOBEX):
        made = key_file.create(tenant.name)
        for scheme in ("Bearer ", "bearer ", "BEARER  "):
            caller = authenticator.authenticate(scheme + made.text)
            assert caller == Caller(tenant=tenant, key_id=made.entry.public_id)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic eDp5"])
def test_no_key_is_refused_with_how_to_send_one(
    key_file: KeyFile, authorization: str | None
) -> None:
    message = _refusal(Authenticator((ACME,), key_file), authorization)
    assert "send it as 'Authorization: Bearer pf_...'" in message


def test_a_key_without_the_scheme_is_no_key(key_file: KeyFile) -> None:
    text = key_file.create("acme").text
    assert "needed" in _refusal(Authenticator((ACME,), key_file), text)


def test_a_wrong_key_is_refused_and_not_repeated(key_file: KeyFile) -> None:
    authenticator = Authenticator((ACME,), key_file)
    text = key_file.create("acme").text
    attempts = [text[:-64] + "0" * 64, "pf_" + "0" * 16 + text[19:], "canary", "é", "\xff"]
    messages = {_refusal(authenticator, f"Bearer {attempt}") for attempt in attempts}
    assert messages == {
        "the API key is not valid: check that it is complete and not revoked"
    }


def test_a_revoked_key_is_refused(key_file: KeyFile) -> None:
    authenticator = Authenticator((ACME,), key_file)
    made = key_file.create("acme")
    key_file.revoke(made.entry.public_id)
    assert "not revoked" in _refusal(authenticator, f"Bearer {made.text}")


def test_an_expired_key_is_refused(key_file: KeyFile, now: SettableClock) -> None:
    authenticator = Authenticator((ACME,), key_file)
    made = key_file.create("acme", expires_at=1060)
    now.advance(59.9)
    assert authenticator.authenticate(f"Bearer {made.text}").tenant == ACME
    now.advance(0.1)
    assert "has expired" in _refusal(authenticator, f"Bearer {made.text}")
    wrong = made.text[:-1] + ("1" if made.text[-1] == "0" else "0")
    assert "expired" not in _refusal(authenticator, f"Bearer {wrong}")


def test_a_key_of_a_tenant_that_was_removed_is_refused(key_file: KeyFile) -> None:
    made = key_file.create("globex")
    message = _refusal(Authenticator((ACME,), key_file), f"Bearer {made.text}")
    assert "does not serve" in message
    assert "globex" not in message


# -- the admin token -------------------------------------------------------------------


def test_the_token_opens_the_plane(path: Path) -> None:
    made = AdminToken.load_or_create(path)
    made.check(made.authorization)
    AdminToken.load_or_create(path).check(made.authorization)
    made.check(AdminToken.load(path).authorization)
    assert path.read_text(encoding="ascii").startswith("pfa_")


def test_only_its_owner_may_read_the_token(path: Path) -> None:
    before = os.umask(0)
    try:
        AdminToken.load_or_create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["admin_token"]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be accessed by others"):
        AdminToken.load_or_create(path)


def test_anything_else_is_refused_and_not_repeated(path: Path, key_file: KeyFile) -> None:
    token = AdminToken.load_or_create(path)
    text = path.read_text(encoding="ascii").strip()
    for attempt in (
        None,
        "",
        text,
        "Bearer",
        "Bearer canary",
        f"Bearer {text[:-1]}",
        f"Bearer {text}0",
        f"Basic {text}",
        f"Bearer {key_file.create('acme').text}",
        AdminToken.generate().authorization,
        "Bearer é\udcff",
    ):
        with pytest.raises(AuthenticationError) as caught:
            token.check(attempt)
        assert "canary" not in str(caught.value)
        assert text not in str(caught.value)


def test_an_admin_token_is_no_api_key(path: Path, key_file: KeyFile) -> None:
    token = AdminToken.load_or_create(path)
    assert "not valid" in _refusal(Authenticator((ACME,), key_file), token.authorization)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    token = AdminToken.generate()
    compared = []
    compare = hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    token.check(token.authorization)
    assert len(compared) == 1


def test_a_token_of_ones_own_may_stand_in_the_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"  " + b"t" * 40 + b"\r\n")
    path.chmod(0o600)
    AdminToken.load_or_create(path).check("Bearer " + "t" * 40)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"short", b"t" * 31, b"t" * 513, b"two words" * 8, b"\xff" * 40],
)
def test_a_file_without_a_token_is_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="must hold one line of 32 to 512") as caught:
        AdminToken.load_or_create(path)
    assert str(path) in str(caught.value)


def test_a_client_makes_no_token(path: Path) -> None:
    with pytest.raises(ConfigError, match="a server makes it when it starts"):
        AdminToken.load(path)
    assert not path.exists()


def test_a_token_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the admin token"):
        AdminToken.load_or_create(tmp_path / "file" / "token")


def test_a_token_is_silent() -> None:
    token = AdminToken.generate()
    assert repr(token) == "AdminToken(...)"
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(token)
    with pytest.raises(ConfigError, match="32 to 512") as caught:
        AdminToken("canary")
    assert "canary" not in str(caught.value)


def test_the_token_is_kept_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_token_path() == tmp_path / "prefold" / "admin_token"


# -- revoked tenants -----------------------------------------------------------------------


def test_keys_of_a_revoked_tenant_are_refused_whatever_the_file_says(
    key_file: KeyFile,
) -> None:
    keys = {name: key_file.create(name).text for name in ("acme", "globex")}
    authenticator = Authenticator((ACME, GLOBEX), key_file)
    callers = {
        name: authenticator.authenticate(f"Bearer {key}") for name, key in keys.items()
    }
    authenticator.refuse(["acme"])
    assert "not valid" in _refusal(authenticator, f"Bearer {keys['acme']}")
    assert authenticator.authenticate(f"Bearer {keys['globex']}") == callers["globex"]
    # Who was let in before is let in no further.
    with pytest.raises(AuthenticationError, match="not valid"):
        authenticator.check(callers["acme"])
    authenticator.check(callers["globex"])
    renewed = authenticator.authenticate(f"Bearer {key_file.create('acme').text}")
    authenticator.check(renewed)


def test_keys_of_a_revoked_tenant_leave_the_file(key_file: KeyFile) -> None:
    for name in ("acme", "globex", "acme"):
        key_file.create(name)
    authenticator = Authenticator((ACME, GLOBEX), key_file)
    assert authenticator.remove_keys([]) == 0
    assert authenticator.remove_keys(["acme"]) == 2
    assert [entry.tenant for entry in key_file.entries()] == ["globex"]
    assert authenticator.remove_keys(["acme"]) == 0


def test_where_nobody_needs_a_key_there_is_none_to_refuse() -> None:
    authenticator = Authenticator()
    authenticator.refuse(["default"])
    authenticator.check(authenticator.authenticate(None))
    assert authenticator.remove_keys(["default"]) == 0
    assert authenticator.tenants == (LOCAL_TENANT,)
