"""Keys, host names and origins."""

import pytest

from voidpad.errors import ConfigError
from voidpad.serve.options import KEYS_VARIABLE, ServeOptions
from voidpad.serve.protocol import RequestError


def keys_file(tmp_path, text="secret\n# a comment\nother\n", mode=0o600):
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


def enter(access, path="/v1/models", *, method="POST", version="1.1", **headers):
    """The status of the refusal, 200 if there is none."""
    try:
        access.enter(
            {"http_version": version, "path": path, "method": method}, {"host": "localhost", **headers}
        )
    except RequestError as error:
        return error.status
    return 200


def test_any_key_of_the_file_opens_and_nothing_else(tmp_path, monkeypatch):
    access = ServeOptions(api_keys=keys_file(tmp_path)).access()
    assert {enter(access, authorization=given) for given in ("Bearer secret", "bearer other")} == {200}
    for given in ("", "secret", "Bearer", "Bearer secre", "Basic secret", "Bearer # a comment"):
        assert enter(access, authorization=given) == 401
    assert enter(access, "/health") == 200
    assert "secret" not in repr(access)
    monkeypatch.setenv(KEYS_VARIABLE, "one, two")
    access = ServeOptions(host="0.0.0.0").access()
    assert enter(access, authorization="Bearer two") == 200
    assert enter(access, authorization="Bearer one, two") == 401


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("k\n", 0o644, "run chmod 600"),
        ("k\n", 0o640, "run chmod 600"),
        ("\n# nothing\n", 0o600, "holds no key"),
        (b"\xff\xfe", 0o600, "damaged text"),
        (None, 0o600, "no such file"),
    ],
)
def test_a_key_file_that_others_could_read_or_without_keys_is_refused(tmp_path, text, mode, message):
    path = tmp_path / "none" if text is None else keys_file(tmp_path, text, mode)
    with pytest.raises(ConfigError, match=message):
        ServeOptions(api_keys=path).access()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7"])
def test_an_address_that_others_reach_needs_keys_or_a_word(address):
    for fields in ({}, {"no_auth": True}):
        with pytest.raises(ConfigError, match=r"--no-auth .* --allowed-host"):
            ServeOptions(host=address, **fields).access()
    access = ServeOptions(host=address, no_auth=True, hosts=("voidpad.example",)).access()
    assert enter(access, host="voidpad.example") == 200
    assert enter(access, host="evil.example", origin="http://evil.example") == 403


def test_loopback_answers_to_its_own_names_only():
    access = ServeOptions(hosts=("Voidpad.example",)).access()
    for host in (
        "localhost:8000",
        "127.0.0.1:9",
        "[::1]:8000",
        "[::1]",
        "LOCALHOST:1",
        "voidpad.example:443",
    ):
        assert enter(access, host=host) == 200
    for host in ("", "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example"):
        assert enter(access, host=host) == 403
    assert enter(access, "/health", version="1.0", host="") == 200
    assert enter(access, "/v1/models", version="1.0", host="") == 403


def test_only_the_servers_own_page_and_trusted_ones_may_ask_from_a_browser():
    access = ServeOptions(origins=("https://App.example/",)).access()
    for origin in ("http://localhost:8000", "https://app.example"):
        assert enter(access, host="localhost:8000", origin=origin) == 200
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:9000",
        "file://localhost:8000",
        "http://[",
    ):
        assert enter(access, host="localhost:8000", origin=origin) == 403
    with pytest.raises(ConfigError, match="allowed-origin"):
        ServeOptions(origins=("app.example",)).access()


def test_a_key_has_at_most_so_many_requests_at_a_time(tmp_path):
    access = ServeOptions(api_keys=keys_file(tmp_path), key_requests=2).access()
    scope = {"http_version": "1.1", "path": "/v1/completions", "method": "POST"}
    secret = {"host": "localhost", "authorization": "Bearer secret"}
    held = [access.enter(scope, secret) for _ in range(2)]
    with pytest.raises(RequestError) as refused:
        access.enter(scope, secret)
    assert (refused.value.status, refused.value.code) == (429, "key_limit")
    assert enter(access, authorization="Bearer other") == 200
    access.leave(held[0])
    access.enter(scope, secret)
