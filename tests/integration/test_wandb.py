"""Weights & Biases, really run: offline, with what belongs to a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_service.training import weights_and_biases
from tests.support.wandb_runs import curve, offline_runs, records, started, train


def test_without_a_key_the_run_is_kept_offline_with_all_that_belongs_to_it(
    tmp_path: Path,
) -> None:
    output = train(tmp_path)
    assert "Weights & Biases run kept offline; to upload: wandb sync " in output
    (folder,) = offline_runs(tmp_path)
    assert curve(folder, "episode_return_mean") == [(100, 1.5), (200, 2.5), (300, 3.5)]
    config = {item.key: json.loads(item.value_json) for item in started(folder).config.update}
    assert config["seed"] == 77
    assert config["model"]["name"] == "gpt2_critic"
    assert started(folder).project == "tests"
    artifacts = {r.artifact.name: r.artifact for r in records(folder) if r.HasField("artifact")}
    files = {entry.path for entry in artifacts["source-tests-rl_service"].manifest.contents}
    assert "training/weights_and_biases.py" in files
    assert not any(path.endswith(".pyc") for path in files)
    assert set(artifacts) == {
        f"source-tests-{package}" for package in ("rl_service", "custom_models", "tune_configs")
    }


def test_a_key_in_netrc_counts_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not weights_and_biases.has_api_key()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    assert weights_and_biases.has_api_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not weights_and_biases.has_api_key()
