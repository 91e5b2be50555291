"""Credentials: who a request speaks for, on the public plane and on the admin plane.

Both read the ``Authorization`` header. An API key leads to a tenant, and the tenant to the
domain, so a client never names either. The admin token is one secret for all of the admin
plane; neither opens the other's door.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from prefold.engine.user_dirs import state_dir
from prefold.errors import ConfigError, PrefoldError
from prefold.identity.private_file import create_private, read_private
from prefold.server.config import LOCAL_TENANT, TenantConfig
from prefold.server.keys import KeyFile

#: Names the admin token's file in place of the configuration.
ADMIN_TOKEN_FILE_VARIABLE = "PREFOLD_ADMIN_TOKEN_FILE"  # noqa: S105 -- a variable's name

_WHAT = "the admin token"
_MAX_FILE_BYTES = 4096
#: What can stand in a header and is too long to be guessed or typed.
_TOKEN = re.compile(rb"[!-~]{32,512}")


class AuthenticationError(PrefoldError):
    """The request does not say who it is, or it is not true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a request speaks for.

    Attributes:
        tenant: Whose it is; its domain is the request's.
        key_id: The public id of the key; None where no key is needed.
        num_revocations: Of its tenant, when it was let in.
    """

    tenant: TenantConfig
    key_id: str | None
    num_revocations: int = 0


class Authenticator:
    """Tells the caller from the ``Authorization`` header, on the event loop.

    Args:
        tenants: Those that are configured; without any, everybody is the local tenant.
        key_file: Their keys; may be None if there are no tenants.

    Raises:
        ConfigError: There are tenants and no key file.
    """

    __slots__ = ("_key_file", "_num_revocations", "_refused", "_tenants")

    def __init__(
        self, tenants: Sequence[TenantConfig] = (), key_file: KeyFile | None = None
    ) -> None:
        if tenants and key_file is None:
            raise ConfigError("tenants need a key file")
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._key_file = key_file
        #: Ids of keys that are refused, whatever becomes of the file.
        self._refused: set[str] = set()
        self._num_revocations: Counter[str] = Counter()

    @property
    def tenants(self) -> tuple[TenantConfig, ...]:
        """All that are served; one of them only, where nobody needs a key."""
        return tuple(self._tenants.values()) or (LOCAL_TENANT,)

    @property
    def needs_key(self) -> bool:
        """Whether requests are told apart by keys."""
        return bool(self._tenants)

    def refresh(self) -> None:
        """Look whether the keys have changed. May take long; on any thread."""
        if self._key_file is not None:
            self._key_file.refresh()

    def authenticate(self, authorization: str | None) -> Caller:
        """Return who sent a request with that header.

        Raises:
            AuthenticationError: There is no key in it, or none that is valid. Nothing
                tells an unknown id from a wrong secret.
        """
        if self._key_file is None or not self._tenants:
            return Caller(tenant=LOCAL_TENANT, key_id=None)
        text = _bearer(authorization)
        if text is None:
            raise AuthenticationError(
                "an API key is needed: send it as 'Authorization: Bearer pf_...'"
            )
        entry = self._key_file.find(text)
        if entry is None or entry.public_id in self._refused:
            raise _not_valid()
        if entry.is_expired(self._key_file.now()):
            raise AuthenticationError("the API key has expired: ask for a new one")
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            raise AuthenticationError(
                "the API key belongs to a tenant that this server does not serve"
            )
        return Caller(
            tenant=tenant,
            key_id=entry.public_id,
            num_revocations=self._num_revocations[tenant.name],
        )

    def check(self, caller: Caller) -> None:
        """Refuse a caller whose tenant was revoked since it was let in.

        Raises:
            AuthenticationError: As for a key that is not valid.
        """
        if caller.num_revocations != self._num_revocations[caller.tenant.name]:
            raise _not_valid()

    def refuse(self, tenant_names: Collection[str]) -> None:
        """Refuse all keys that some tenants have, and calls that came in with them."""
        if self._key_file is None:
            return  # whoever is on this machine is served, and keeps being
        for entry in self._key_file.entries():
            if entry.tenant in tenant_names:
                self._refused.add(entry.public_id)
        self._num_revocations.update(tenant_names)

    def remove_keys(self, tenant_names: Collection[str]) -> int:
        """Take all keys of some tenants out of the file; return how many there were.

        Waits for the file; on any thread.

        Raises:
            ConfigError: The file cannot be used or written; nothing changes.
        """
        if self._key_file is None or not tenant_names:
            return 0
        return self._key_file.revoke_tenants(tenant_names)


class AdminToken:
    """The secret of the admin plane; silent about itself."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(_bytes(token)):
            raise ConfigError(
                "an admin token is 32 to 512 printable ASCII characters without spaces; "
                "64 random hexadecimal digits are a good one"
            )
        self._token = token

    def __repr__(self) -> str:
        return "AdminToken(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an admin token cannot be copied or serialised")

    @classmethod
    def generate(cls) -> AdminToken:
        """Return a new token, which ends with this process."""
        return cls(_new_token())

    @classmethod
    def load(cls, path: Path) -> AdminToken:
        """Read the token in ``path``, as a client of the admin plane does.

        Raises:
            ConfigError: There is no such file, it cannot be read, others than its owner
                can access it, or it holds no token.
        """
        try:
            return cls._read(path)
        except FileNotFoundError as exc:
            raise ConfigError(
                f"{_WHAT} {path} does not exist: a server makes it when it starts"
            ) from exc

    @classmethod
    def load_or_create(cls, path: Path) -> AdminToken:
        """Read the token in ``path``; make the file first if there is none.

        Raises:
            ConfigError: It can be neither used nor made.
        """
        try:
            return cls._read(path)
        except FileNotFoundError:
            pass
        try:
            create_private(path, f"{_new_token()}\n".encode())
            return cls._read(path)
        except OSError as exc:
            raise ConfigError(f"cannot make {_WHAT} {path}: {exc.strerror}") from exc

    @property
    def authorization(self) -> str:
        """The header's value that a client of the admin plane sends."""
        return f"Bearer {self._token}"

    def check(self, authorization: str | None) -> None:
        """Return if the header holds the token, comparing in constant time.

        Raises:
            AuthenticationError: It does not.
        """
        sent = _bearer(authorization)
        # As bytes: a header may hold anything, and as text only ASCII can be compared.
        if sent is None or not hmac.compare_digest(_bytes(sent), _bytes(self._token)):
            raise AuthenticationError(
                "the admin token is needed: send the content of its file as "
                "'Authorization: Bearer ...'"
            )

    @classmethod
    def _read(cls, path: Path) -> AdminToken:
        data = read_private(path, _WHAT, max_bytes=_MAX_FILE_BYTES).strip()
        if not _TOKEN.fullmatch(data):
            raise ConfigError(
                f"{_WHAT} {path} must hold one line of 32 to 512 printable ASCII "
                "characters without spaces; remove it to have a new one made"
            )
        return cls(data.decode("ascii"))


def default_token_path() -> Path:
    """Return the admin token's file in the user's state directory.

    Raises:
        ConfigError: The user has no home.
    """
    return state_dir() / "admin_token"


def _not_valid() -> AuthenticationError:
    return AuthenticationError(
        "the API key is not valid: check that it is complete and not revoked"
    )


def _new_token() -> str:
    # Begins otherwise than an API key, so that nobody takes one for the other.
    return f"pfa_{secrets.token_hex(32)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _bearer(authorization: str | None) -> str | None:
    """Return what follows the scheme, which may be written in any case."""
    scheme, _, rest = (authorization or "").partition(" ")
    text = rest.strip(" ")
    return text if scheme.lower() == "bearer" and text else None
