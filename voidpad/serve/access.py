"""Who may ask: API keys, host names under which this server answers, and web pages that may call it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from voidpad.errors import ConfigError
from voidpad.serve.protocol import RequestError

KEYS_VARIABLE = "VOIDPAD_API_KEYS"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Access:
    """Checks keys, host names and origins. `keys` holds digests, so that no key can reach a log or an error."""

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = frozenset()  # names accepted in the Host header; empty accepts any
    origins: frozenset[str] = frozenset()  # other web pages whose scripts may call this server
    key_requests: int | None = None  # most requests of one key that are answered at a time
    open_requests: Counter[bytes] = field(default_factory=Counter, compare=False, repr=False)

    def allows_key(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries a known key, or none is needed."""
        return not self.keys or self._key(authorization) is not None

    def enter(self, authorization: str | None, *, generates: bool) -> bytes | None:
        """The digest of the key of a request that begins; refuses a wrong key and a key with too many requests."""
        if not self.keys:
            return None
        key = self._key(authorization)
        if key is None:
            raise RequestError(
                "a valid API key is needed: Authorization: Bearer KEY.",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not generates or self.key_requests is None:
            return None
        if self.open_requests[key] >= self.key_requests:
            raise RequestError(
                f"this key has {self.key_requests} requests open already; wait for one to end.",
                status=429,
                kind="rate_limit_error",
                code="key_limit",
                headers={"Retry-After": "1"},
            )
        self.open_requests[key] += 1
        return key

    def leave(self, key: bytes | None) -> None:
        """A request that `enter` counted has ended."""
        if key is not None:
            self.open_requests[key] -= 1

    def _key(self, authorization: str | None) -> bytes | None:
        """The digest of the header's key if it is known; every key is compared, in constant time."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self.keys]
        return given if scheme.lower() == "bearer" and any(matches) else None

    def allows_host(self, host: str | None) -> bool:
        """Whether a request was addressed to this server by one of its own names (no rebound DNS name)."""
        return not self.hosts or _name(host) in self.hosts

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a browser's request comes from this server's own page or from a trusted one.

        Programs other than browsers send no Origin.
        """
        if origin is None or origin.lower() in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()

    def cors_headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """What lets a browser hand a reply to the script of a trusted page; nothing for any other page."""
        if origin is None or origin.lower() not in self.origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"vary", b"Origin"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
        ]


def read_access(
    address: str,
    keys_file: Path | None,
    *,
    no_auth: bool,
    names: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    key_requests: int | None = None,
) -> Access:
    """The access rules of a server that listens on `address`.

    Keys come from a file of mode 600, one per line, or from the variable VOIDPAD_API_KEYS, separated by
    commas. Anything but a loopback address needs keys, unless `no_auth` says that it does not; then the host names
    must be said, or any web page could have a browser of the network ask by a name of its own.
    """
    keys = _read_keys(keys_file) if keys_file else _listed(os.environ.get(KEYS_VARIABLE, "").split(","))
    loopback = _is_loopback(address)
    if not keys and not loopback and not no_auth:
        raise ConfigError(
            f"host={address!r} can be reached from other machines and no API keys are set; "
            f"give --api-keys FILE, set {KEYS_VARIABLE}, or say --no-auth."
        )
    if not keys and not loopback and not names:
        raise ConfigError(
            f"host={address!r} without API keys answers whoever reaches it; name the hosts under which clients "
            "ask with --allowed-host NAME."
        )
    for origin in origins:
        if urlsplit(origin).scheme not in ("http", "https") or urlsplit(origin).path not in ("", "/"):
            raise ConfigError(f"allowed-origin={origin!r} is no origin; write it as https://example.org.")
    hosts = {name.lower() for name in names}
    if loopback:
        hosts |= set(LOOPBACK_NAMES)
    elif hosts or address not in ("0.0.0.0", "::"):
        hosts |= {address.lower(), *LOOPBACK_NAMES}
    trusted = frozenset(origin.lower().rstrip("/") for origin in origins)
    return Access(tuple(_digest(key) for key in keys), frozenset(hosts), trusted, key_requests)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _read_keys(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"api-keys {path}: not a plain file; give a text file with one key a line.")
            if status.st_mode & 0o077:
                raise ConfigError(f"api-keys {path}: other users may read it; run chmod 600 {path}.")
            text = file.read(1 << 20).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"api-keys {path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"api-keys {path}: not UTF-8 text; give one key a line.") from None
    keys = _listed(text.splitlines())
    if not keys:
        raise ConfigError(f"api-keys {path}: holds no key; give one key a line.")
    return keys


def _listed(words: list[str]) -> list[str]:
    return [word.strip() for word in words if word.strip() and not word.strip().startswith("#")]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _name(host: str | None) -> str:
    """A Host header without its port."""
    text = (host or "").lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]
