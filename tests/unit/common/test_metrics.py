"""The list of metrics is complete and its rows are plain numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from rl_service.common.metrics import METRICS, check_row, json_row


def test_every_metric_has_a_unit_and_a_meaning() -> None:
    for key, metric in METRICS.items():
        assert metric.unit, key
        assert metric.meaning, key


def test_known_keys_pass() -> None:
    check_row(dict.fromkeys(METRICS, 0.0))


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match="unknown metric 'episode_reward_mean'; did you mean"):
        check_row({"entropy": 1.0, "episode_reward_mean": 2.0})


def test_a_key_like_no_other_is_named_alone() -> None:
    with pytest.raises(ValueError, match=r"'zzz'; list it in rl_service\.common\.metrics"):
        check_row({"zzz": 1.0})


def test_numbers_of_any_library_become_plain_ones() -> None:
    row = json_row(
        {"a": np.int64(3), "b": np.float32(0.5), "c": torch.tensor(1.5), "d": 7, "e": None}
    )
    assert json.loads(json.dumps(row)) == {"a": 3, "b": 0.5, "c": 1.5, "d": 7, "e": None}
    assert isinstance(row["a"], int)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_numbers_that_json_lacks_become_null(value: float) -> None:
    assert json_row({"entropy": value}) == {"entropy": None}
