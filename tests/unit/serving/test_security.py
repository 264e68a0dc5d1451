"""Tokens: named, read again when their file changes, never shown; who may bind where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl_service.common.errors import SettingsError
from rl_service.serving import security
from rl_service.serving.security import Tokens, check_bind, is_loopback, parse_tokens

FIRST, SECOND = "a" * 16, "b" * 32


def test_tokens_have_names() -> None:
    text = f"# who\nalice: {FIRST}\n\nbob={SECOND}\n"
    assert parse_tokens(text, "t") == {"alice": FIRST, "bob": SECOND}
    assert parse_tokens(f"alice: {FIRST},bob: {SECOND}", "t") == {"alice": FIRST, "bob": SECOND}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no token"),
        ("# nothing", "no token"),
        (SECOND, "another form"),
        ("alice: short", "shorter than 16"),
        (f"alice: {FIRST}\nalice: {SECOND}", "twice"),
        (f"alice: {FIRST} {SECOND}", "another form"),
    ],
)
def test_a_bad_file_is_refused_and_no_secret_is_shown(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        parse_tokens(text, "token file t")
    assert not any(secret in str(refused.value) for secret in (FIRST, SECOND))


def test_the_right_token_gives_its_name() -> None:
    tokens = Tokens(None, {"RL_SERVICE_TOKENS": f"alice: {FIRST}, bob: {SECOND}"})
    assert tokens.required
    assert tokens.name_of(f"Bearer {FIRST}") == "alice"
    assert tokens.name_of(f"bearer {SECOND}") == "bob"
    for wrong in ("", "Bearer", "Bearer ", f"Basic {FIRST}", f"Bearer {FIRST}x", "Bearer \udc80"):
        assert tokens.name_of(wrong) is None


def test_without_tokens_none_is_required() -> None:
    assert not Tokens(None, {}).required


def test_a_changed_file_counts_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "tokens"
    write(file, f"alice: {FIRST}", 1)
    tokens = Tokens(file)
    write(file, f"bob: {SECOND}", 2)
    assert tokens.name_of(f"Bearer {FIRST}") is None
    assert tokens.name_of(f"Bearer {SECOND}") == "bob"
    for broken in ("", "nonsense"):
        write(file, broken, 3)
        assert tokens.name_of(f"Bearer {SECOND}") == "bob"  # the last good ones stay
    file.unlink()
    assert tokens.name_of(f"Bearer {SECOND}") == "bob"
    write(file, f"carol: {FIRST}", 4)
    assert tokens.name_of(f"Bearer {FIRST}") == "carol"


def write(file: Path, text: str, time_s: int) -> None:
    file.write_text(text, encoding="utf-8")
    os.utime(file, (time_s, time_s))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_only_loopback_goes_without_a_token(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
    check_bind(host, Tokens(None, {"RL_SERVICE_TOKENS": f"alice: {FIRST}"}))
    if loopback:
        check_bind(host, Tokens(None, {}))
    else:
        with pytest.raises(SettingsError, match="needs tokens"):
            check_bind(host, Tokens(None, {}))
