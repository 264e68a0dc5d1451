"""A run's numbers at the metrics port of a real Ray, as Prometheus reads them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from custom_models.configs import MLPConfig
from rl_service.common.metrics import METRICS
from rl_service.config.settings import EnvSettings, Settings, TrackingSettings
from rl_service.training import ray_metrics
from rl_service.training.run import Run
from rl_service.training.tracking import Tracker, build_trackers
from tests.support.rays import own_ray

BOARD = Path(__file__).parents[2] / "deploy" / "grafana-training.json"
DEADLINE_S = 60.0
Samples = dict[str, tuple[float, dict[str, str]]]


@pytest.fixture
def metrics_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Ray that reports every second, and trackers that refresh twice as often."""
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    monkeypatch.setattr(ray_metrics, "_REFRESH_S", 0.5)
    with own_ray():
        yield f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"


def build(folder: Path, **tracking: Any) -> list[Tracker]:
    settings = Settings(
        env=EnvSettings(id="Pendulum-v1"),
        model=MLPConfig(),
        tracking=TrackingSettings(
            output_dir=str(folder), experiment="exp", tensorboard=False, **tracking
        ),
    )
    return build_trackers(Run.create(settings, command=[]), settings)


def scrape(url: str) -> Samples:
    """Value and labels of this project's gauges, without Ray's prefix."""
    try:
        page = httpx.get(url, timeout=5.0).text
    except httpx.TransportError:  # the port opens a few seconds after Ray has started
        return {}
    return {
        sample.name.removeprefix("ray_"): (sample.value, sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("ray_rl_service_")
    }


def wait_for(url: str, condition: Callable[[Samples], bool]) -> Samples:
    deadline = time.monotonic() + DEADLINE_S
    while not condition(samples := scrape(url)):
        assert time.monotonic() < deadline, samples
        time.sleep(0.2)
    return samples


def test_numbers_stay_at_the_metrics_port_until_the_run_ends(
    metrics_url: str, tmp_path: Path
) -> None:
    (tracker,) = build(tmp_path)
    name = "rl_service_training_num_env_runners"
    tracker.log({"num_env_runners": 1, "evaluation/episode_return_mean": -200.5}, 100)
    tracker.log({"num_env_runners": 2, "episode_return_mean": None, "entropy": 0.5}, 200)
    samples = wait_for(metrics_url, lambda found: name in found and found[name][0] == 2.0)
    _, labels = samples[name]
    kept = {tag: labels[tag] for tag in ("experiment", "env", "model", "algorithm")}
    assert kept == {
        "experiment": "exp",
        "env": "Pendulum-v1",
        "model": "mlp",
        "algorithm": "ppo",
    }
    assert labels["run"] == next((tmp_path / "runs" / "exp").iterdir()).name
    evaluation = "rl_service_training_evaluation_episode_return_mean"
    assert samples[evaluation][0] == -200.5  # of an earlier row, and still the newest
    assert set(samples) == {name, evaluation}
    time.sleep(5.0)  # more than twice as long as Ray keeps what nobody sets
    assert scrape(metrics_url)[name][0] == 2.0
    tracker.finish("finished")
    wait_for(metrics_url, lambda found: not found)


@pytest.mark.usefixtures("metrics_url")
def test_it_can_be_off(tmp_path: Path) -> None:
    assert build(tmp_path, ray_metrics=False) == []


def test_without_ray_there_is_none(tmp_path: Path) -> None:
    assert not ray.is_initialized()
    assert build(tmp_path) == []


def test_a_ray_that_has_gone_costs_nothing_but_the_numbers(tmp_path: Path) -> None:
    with own_ray():
        (tracker,) = build(tmp_path)
        tracker.log({"num_env_runners": 1}, 100)
    tracker.log({"num_env_runners": 1}, 200)
    tracker.finish("failed")


def test_the_training_board_shows_gauges_that_there_are() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    shown = {name for query in queries for name in re.findall(r"ray_rl_service_\w+", query)}
    prefix = f"ray_{ray_metrics.PREFIX}"
    known = {prefix + key.replace("/", "_") for key in ray_metrics.SHOWN}
    assert shown <= known
    assert set(ray_metrics.SHOWN) <= set(METRICS)
    asked = {"num_env_runners", "num_env_runners_target", "sample_time_s", "num_worker_restarts"}
    assert {prefix + key for key in asked} <= shown
