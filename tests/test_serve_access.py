"""Keys, host names and origins."""

import pytest

from voidpad.errors import ConfigError
from voidpad.serve.access import KEYS_VARIABLE, Access, read_access
from voidpad.serve.protocol import RequestError


def keys_file(tmp_path, text="secret\n# a comment\nother\n", mode=0o600):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


def test_any_key_of_the_file_opens_and_nothing_else(tmp_path):
    access = read_access("127.0.0.1", keys_file(tmp_path), no_auth=False)
    for header in ("Bearer secret", "bearer other"):
        assert access.allows_key(header)
    for header in (
        None,
        "",
        "secret",
        "Bearer",
        "Bearer ",
        "Bearer secre",
        "Basic secret",
        "Bearer # a comment",
    ):
        assert not access.allows_key(header)
    assert "secret" not in repr(access)


def test_keys_from_the_environment(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, "one, two")
    access = read_access("0.0.0.0", None, no_auth=False)
    assert access.allows_key("Bearer two")
    assert not access.allows_key("Bearer one, two")


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("k\n", 0o644, "run chmod 600"),
        ("\n# nothing\n", 0o600, "holds no key"),
        ("k\n", 0o640, "run chmod 600"),
    ],
)
def test_a_key_file_others_could_read_or_without_keys_is_refused(tmp_path, text, mode, message):
    with pytest.raises(ConfigError, match=message):
        read_access("127.0.0.1", keys_file(tmp_path, text, mode), no_auth=False)


def test_a_missing_or_strange_key_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_access("127.0.0.1", tmp_path / "none", no_auth=False)
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "latin").chmod(0o600)
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_access("127.0.0.1", tmp_path / "latin", no_auth=False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7"])
def test_an_address_others_reach_needs_keys_or_a_word(address):
    with pytest.raises(ConfigError, match="--no-auth"):
        read_access(address, None, no_auth=False)
    with pytest.raises(ConfigError, match="--allowed-host"):
        read_access(address, None, no_auth=True)
    assert read_access(address, None, no_auth=True, names=("voidpad.example",)).allows_key(None)


def test_loopback_answers_to_its_own_names_only():
    access = read_access("127.0.0.1", None, no_auth=False)
    for host in ("localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "LOCALHOST:1"):
        assert access.allows_host(host)
    for host in (None, "", "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example"):
        assert not access.allows_host(host)
    named = read_access("127.0.0.1", None, no_auth=False, names=("Voidpad.example",))
    assert named.allows_host("voidpad.example:443")


def test_only_the_servers_own_page_may_ask_from_a_browser():
    access = Access()
    assert access.allows_origin(None, "localhost:8000")
    assert access.allows_origin("http://localhost:8000", "localhost:8000")
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:9000",
        "file://localhost:8000",
        "http://[",
    ):
        assert not access.allows_origin(origin, "localhost:8000")


def test_a_trusted_page_may_ask_and_others_get_no_headers():
    access = read_access("127.0.0.1", None, no_auth=False, origins=("https://App.example/",))
    assert access.allows_origin("https://app.example", "localhost:8000")
    assert (
        dict(access.cors_headers("https://app.example"))[b"access-control-allow-origin"]
        == b"https://app.example"
    )
    assert access.cors_headers("http://localhost:8000") == access.cors_headers(None) == []
    with pytest.raises(ConfigError, match="allowed-origin"):
        read_access("127.0.0.1", None, no_auth=False, origins=("app.example",))


def test_a_key_has_at_most_so_many_requests_at_a_time(tmp_path):
    access = read_access("127.0.0.1", keys_file(tmp_path), no_auth=False, key_requests=2)
    held = [access.enter("Bearer secret", generates=True) for _ in range(2)]
    with pytest.raises(RequestError) as refused:
        access.enter("Bearer secret", generates=True)
    assert (refused.value.status, refused.value.code) == (429, "key_limit")
    access.enter("Bearer other", generates=True)
    access.leave(held[0])
    access.enter("Bearer secret", generates=True)
    with pytest.raises(RequestError) as unknown:
        access.enter("Bearer wrong", generates=True)
    assert unknown.value.headers == {"WWW-Authenticate": "Bearer"}
