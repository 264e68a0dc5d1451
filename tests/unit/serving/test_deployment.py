"""The Serve config in deploy/ is one that the application accepts, and mistakes are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_service.common.errors import SettingsError
from rl_service.serving.deployment import build_app
from rl_service.serving.shared import ServingMetrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_shipped_config_is_accepted() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load((DEPLOY / "serve.yaml").read_text(encoding="utf-8"))
    ServeDeploySchema.model_validate(config)
    [application] = config["applications"]
    assert application["import_path"] == f"{build_app.__module__}:{build_app.__name__}"
    build_app(application["args"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "policies"),
        ({"policies": []}, "policies"),
        ({"policies": ["zoo:lunarlander"], "replica": 2}, "replica"),
        ({"policies": ["zoo:lunarlander"], "canary": 10}, "canary"),
        ({"policies": ["zoo:lunarlander"], "limits": {"max_session": 1}}, "max_session"),
        ({"policies": ["zoo:lunarlander"], "min_replicas": 3, "max_replicas": 2}, "min_replicas"),
    ],
)
def test_a_misspelt_or_impossible_argument_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        build_app(arguments)


def test_the_board_shows_metrics_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    shown = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"rl_service_\w+", target["expr"])
    }
    known = {family.name for family in ServingMetrics().registry.collect()} | {
        "rl_service_sessions"
    }
    assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in shown} <= known
