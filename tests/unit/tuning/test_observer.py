"""What trackers of many trials say is told once, and none of it hides another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_service.common.metrics import ENV_STEPS
from rl_service.tuning import observer
from rl_service.tuning.observer import TrialTrackers
from rl_service.tuning.plan import SCORE
from rl_service.tuning.trial_view import TrialView
from tests.support.tuning import small_plan


def test_each_kind_of_line_is_told_for_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(run: Any, settings: Any, notify: Any) -> list[Any]:
        notify(f"Weights & Biases run: https://wandb.example/{run.path.name}")
        if run.path.name == "trial_b":
            notify("TensorBoard is switched off: the disk is full")
        return []

    monkeypatch.setattr(observer, "build_trackers", build)
    told: list[str] = []
    trackers = TrialTrackers(small_plan(tmp_path).space, tmp_path, told.append)
    for trial_id in "abc":
        view = TrialView(trial_id, "running", {}, None, None, None, None, None)
        trackers.log(view, {SCORE: 1.0, ENV_STEPS: 1})
    assert told == [
        "Weights & Biases run: https://wandb.example/trial_a",
        "TensorBoard is switched off: the disk is full",
    ]
