"""Secrets go into no place that others can read."""

from __future__ import annotations

import pytest

from rl_service.cluster.variables import job_variables, refuse_secrets
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
