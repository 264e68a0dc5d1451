"""Which workers are forked."""

from __future__ import annotations

import json

import pytest
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from rl_service import ray_session


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
    assert list(ray_session._runtime_env()) == keys
