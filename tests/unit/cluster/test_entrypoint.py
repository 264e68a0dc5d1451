"""What a job gets from whoever submits it; secrets go into no place that others can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cluster.entrypoint import (
    as_submitted,
    job_variables,
    refuse_secrets,
    take_secrets,
)
from rl_service.common.errors import JobError

ENVIRONMENT = {
    "HOME": "/home/me",
    "WANDB_API_KEY": "0123456789abcdef",
    "WANDB_MODE": "offline",
    "RL_SERVICE_REGISTRY": "s3://bucket/policies",
    "RL_SERVICE_HOME": "/home/me/.rl-service",
    "RL_SERVICE_TOKENS": "me: secret",
    "RL_SERVICE_CLUSTER_ID": "0123",
    "AWS_SECRET_ACCESS_KEY": "aws-secret",
    "AWS_REGION": "",
    "RAY_AUTH_TOKEN": "ray-secret",
}


def test_only_what_a_job_needs_goes_with_it() -> None:
    variables = job_variables(ENVIRONMENT)
    assert variables.open.keys() - {"RAY_JOB_STOP_WAIT_TIME_S"} == {
        "WANDB_MODE",
        "RL_SERVICE_REGISTRY",
    }
    assert variables.secret.keys() == {"WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"}


def test_an_address_with_a_password_is_a_secret() -> None:
    given = {"WANDB_BASE_URL": "https://me:pass@wandb.example", "RL_SERVICE_MODELS": "/models"}
    variables = job_variables(given)
    assert variables.secret == {"WANDB_BASE_URL": "https://me:pass@wandb.example"}


def test_a_stopped_job_has_time_to_save_on_any_cluster() -> None:
    assert int(job_variables({}).open["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("key=0123456789abcdef", "holds the value of WANDB_API_KEY"),
        ("s3://me:password@store/runs", "holds a password in a URI"),
    ],
)
def test_secrets_in_arguments_are_refused_without_showing_them(argument: str, message: str) -> None:
    with pytest.raises(JobError, match=message) as caught:
        refuse_secrets(["train", argument], job_variables(ENVIRONMENT).secret)
    assert argument not in str(caught.value)


def test_other_arguments_pass() -> None:
    arguments = ["tune", "x.yaml", "--storage", "s3://bucket/a@b", "-e", "my_module:MyEnv"]
    refuse_secrets(arguments, {"WANDB_API_KEY": "a"})


def test_settings_are_read_as_submitted_and_other_paths_where_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "runs").mkdir()
    given = ["--config", "a.yaml", "--config=a.yaml", "--resume", "runs", "other.yaml", "x=a.yaml"]
    shipped = f"{tmp_path}/a.yaml"
    assert as_submitted(given, tmp_path) == [
        *("--config", shipped, f"--config={shipped}"),
        *("--resume", "runs", "other.yaml", "x=a.yaml"),
    ]


def test_a_job_takes_its_secrets_and_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text('{"WANDB_API_KEY": "secret"}')
    environment = {"RL_SERVICE_JOB_SECRETS": str(path)}
    take_secrets(environment)
    assert environment == {"WANDB_API_KEY": "secret"}
    assert not path.exists()
    take_secrets(environment)
    assert environment == {"WANDB_API_KEY": "secret"}
