"""Which workers are forked, and who can read Ray's token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from rl_service.common.errors import ResourceError
from rl_service.runtime import ray_session


@pytest.mark.parametrize(
    ("job", "keys"),
    [
        (None, ["py_executable"]),
        ({}, ["py_executable"]),
        ({"runtime_env": {"working_dir": "x.zip", "env_vars": {"A": "1"}}}, ["py_executable"]),
        ({"runtime_env": {"pip": ["lightgbm"]}}, []),
        ({"runtime_env": {"py_executable": "uv run python"}}, []),
    ],
)
def test_workers_of_a_job_with_a_python_of_its_own_are_left_to_ray(
    job: object, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAY_JOB_CONFIG_JSON_ENV_VAR, raising=False)
    if job is not None:
        monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, json.dumps(job))
    assert list(ray_session._runtime_env("custom_models.nets")) == keys


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home" / ".ray" / "auth_token"


def modes(token: Path) -> tuple[str, str]:
    return oct(token.parent.stat().st_mode)[-3:], oct(token.stat().st_mode)[-3:]


def test_a_new_token_is_its_owners_alone(token: Path) -> None:
    ray_session.protect_token()
    assert modes(token) == ("700", "600")
    assert len(token.read_text()) == 64


def test_a_token_that_all_could_read_is_kept_and_closed(token: Path) -> None:
    token.parent.mkdir(parents=True, mode=0o755)
    token.write_text("as Ray wrote it")
    token.chmod(0o644)
    ray_session.protect_token()
    assert modes(token) == ("700", "600")
    assert token.read_text() == "as Ray wrote it"


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x"), ("RAY_AUTH_TOKEN_PATH", "/x")],
)
def test_no_token_is_made_where_ray_uses_another_or_none(
    token: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ray_session.protect_token()
    assert not token.exists()


def test_a_home_that_cannot_be_written_is_named(token: Path) -> None:
    token.parents[1].write_text("a file")
    with pytest.raises(ResourceError, match=r"not a directory: .*/\.ray/auth_token"):
        ray_session.protect_token()
