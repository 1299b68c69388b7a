"""Who may ask: API keys, and the host names under which this server answers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from voidpad.errors import ConfigError

KEYS_VARIABLE = "VOIDPAD_API_KEYS"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Access:
    """Checks keys and host names. `keys` holds digests, so that no key can reach a log or an error."""

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = frozenset()  # names accepted in the Host header; empty accepts any

    def allows_key(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries a known key; every key is compared, in constant time."""
        if not self.keys:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self.keys]
        return scheme.lower() == "bearer" and any(matches)

    def allows_host(self, host: str | None) -> bool:
        """Whether a request was addressed to this server by one of its own names (no rebound DNS name)."""
        return not self.hosts or _name(host) in self.hosts

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a browser's request comes from this server's own page; other programs send no Origin."""
        if origin is None:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()


def read_access(
    address: str, keys_file: Path | None, *, no_auth: bool, names: tuple[str, ...] = ()
) -> Access:
    """The access rules of a server that listens on `address`.

    Keys come from a file of mode 600, one per line, or from the variable VOIDPAD_API_KEYS, separated by
    commas. Anything but a loopback address needs keys, unless `no_auth` says that it does not.
    """
    keys = _read_keys(keys_file) if keys_file else _listed(os.environ.get(KEYS_VARIABLE, "").split(","))
    loopback = _is_loopback(address)
    if not keys and not loopback and not no_auth:
        raise ConfigError(
            f"host={address!r} can be reached from other machines and no API keys are set; "
            f"give --api-keys FILE, set {KEYS_VARIABLE}, or say --no-auth."
        )
    hosts = {name.lower() for name in names}
    if loopback:
        hosts |= set(LOOPBACK_NAMES)
    elif hosts or address not in ("0.0.0.0", "::"):
        hosts |= {address.lower(), *LOOPBACK_NAMES}
    return Access(tuple(_digest(key) for key in keys), frozenset(hosts))


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
