"""How to serve, and who may ask: limits, API keys, host names, and web pages that may call the server."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidpad.errors import ConfigError
from voidpad.files import readable
from voidpad.serve.protocol import RequestError

KEYS_VARIABLE = "VOIDPAD_API_KEYS"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = ("/", "/health", "/ready")  # no key needed: the page asks for the key itself


@dataclass(frozen=True)
class ServeOptions:
    """How to serve: the decoding defaults, the address and the limits."""

    plan: str | None = None  # by the checkpoint unless given
    fields: dict[str, Any] = field(default_factory=dict)
    cache: str | None = None
    name: str | None = None  # the model's name for clients; the name it was loaded by unless given
    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()  # further names accepted in the Host header
    origins: tuple[str, ...] = ()  # other web pages whose scripts may call this server
    api_keys: Path | None = None
    key_requests: int | None = None  # most requests of one key at a time
    no_auth: bool = False
    lenient: bool = False  # ignore fields that cannot be honoured, and say so
    rows: int = 32
    tokens: int = 16384
    queue: int = 256
    connections: int = 1024  # most open connections
    timeout: float = 120.0  # seconds from a request to its last token
    drain: float = 30.0
    max_body: int = 1 << 20  # bytes
    log_json: bool = False
    log_prompts: bool = False

    def access(self) -> Access:
        """The access rules of a server with these options.

        Anything but a loopback address needs keys, unless `no_auth` says that it does not; then the host names must
        be said, or any web page could have a browser of the network ask by a name of its own.
        """
        keys = _read_keys(self.api_keys)
        loopback = _is_loopback(self.host)
        if not keys and not loopback and not (self.no_auth and self.hosts):
            raise ConfigError(
                f"host={self.host!r} can be reached from other machines and no API keys are set; give --api-keys FILE, "
                f"set {KEYS_VARIABLE}, or say --no-auth and name the hosts under which clients ask with "
                "--allowed-host NAME."
            )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/]+/?", origin):
                raise ConfigError(f"allowed-origin={origin!r} is no origin; write it as https://example.org.")
        hosts = {name.lower() for name in self.hosts}
        if hosts or self.host not in ("0.0.0.0", "::"):
            hosts |= {self.host.lower(), *LOOPBACK_NAMES}
        origins = frozenset(origin.lower().rstrip("/") for origin in self.origins)
        digests = tuple(_digest(key) for key in keys)
        return Access(digests, frozenset(hosts), origins, self.key_requests)


@dataclass(frozen=True)
class Access:
    """Checks keys, host names and origins. `keys` holds digests, so that no key can reach a log or an error."""

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = frozenset()  # names accepted in the Host header; empty accepts any
    origins: frozenset[str] = frozenset()  # other web pages whose scripts may call this server
    key_requests: int | None = None
    open_requests: Counter[bytes] = field(default_factory=Counter, compare=False, repr=False)

    def enter(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> bytes | None:
        """Refuse who may not ask; the digest of the key if `leave` must be called when the request has ended."""
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        probe = not host and scope["http_version"] == "1.0" and scope["path"] in ("/health", "/ready")
        if self.hosts and not probe and re.sub(r":\d*$", "", host) not in self.hosts:
            raise RequestError(
                "this server does not answer under that host name; start it with --allowed-host NAME.",
                status=403,
            )
        # A browser says from which page a request comes: from this server's own, or from a trusted one.
        if origin and origin not in {f"http://{host}", f"https://{host}", *self.origins}:
            raise RequestError(
                "requests from other web pages are refused; start the server with --allowed-origin ORIGIN.",
                status=403,
            )
        if not self.keys or scope["path"] in OPEN_PATHS:
            return None
        scheme, _, key_text = headers.get("authorization", "").partition(" ")
        key = _digest(key_text.strip())
        known = [hmac.compare_digest(key, one) for one in self.keys]  # every one, in constant time
        if scheme.lower() != "bearer" or not any(known):
            raise RequestError(
                "a valid API key is needed: Authorization: Bearer KEY.", status=401, code="invalid_api_key"
            )
        if scope["method"] != "POST" or self.key_requests is None:
            return None
        if self.open_requests[key] >= self.key_requests:
            raise RequestError(
                f"this key has {self.key_requests} requests open already; wait for one to end.",
                status=429,
                code="key_limit",
            )
        self.open_requests[key] += 1
        return key

    def leave(self, key: bytes | None) -> None:
        """A request that `enter` counted has ended."""
        if key is not None:
            self.open_requests[key] -= 1


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _read_keys(path: Path | None) -> list[str]:
    """The keys of a file of mode 600, one a line, or of the variable VOIDPAD_API_KEYS, separated by commas."""
    if path is None:
        lines = os.environ.get(KEYS_VARIABLE, "").split(",")
    else:
        with readable(path, "text", ConfigError):
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"api-keys {path}: other users may read it; run chmod 600 {path}.")
            lines = path.read_text(encoding="utf-8").splitlines()
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if path is not None and not keys:
        raise ConfigError(f"api-keys {path}: holds no key; give one key a line.")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
