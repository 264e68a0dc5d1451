"""A played episode in environments of other spaces, with action masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rl_service.page.child import PlayError
from rl_service.page.episode import PlayedEpisode
from rl_service.policies import load_bundle
from rl_service.training.evaluation import evaluate
from tests.conftest import WriteTestBundle
from tests.support.locks import Locks

HERE = "tests.unit.page.test_spaces"


class DrawnLocks(Locks):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def test_what_the_environment_forbids_has_no_probability_and_is_refused(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "Taxi-v3", max_episode_steps=15)
    policy = load_bundle(tmp_path / "p")
    expected = evaluate(policy, policy.spec.env, num_episodes=1, seed=3)
    play = PlayedEpisode(tmp_path / "p", None, ())
    state = play.reset(3)
    assert sum(state["observation"]) == 1.0
    refused = 0
    while not state["ended"]:
        chances = state["probabilities"]
        assert sum(chances) == pytest.approx(1.0)
        for forbidden in (action for action in range(6) if chances[action] == 0.0):
            with pytest.raises(PlayError, match="does not allow this action now"):
                play.step(forbidden)
            refused += 1
        state = play.step(None)
    assert refused > 15  # picking up and dropping is hardly ever allowed
    assert (state["step"], state["episode_return"]) == (15, expected.returns[0])


def test_several_choices_are_shown_side_by_side_and_taken_over(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    """The environment raises at an illegal action."""
    write_test_bundle(tmp_path / "p", f"{HERE}:DrawnLocks")
    play = PlayedEpisode(tmp_path / "p", None, (HERE,))
    assert play.description["actions"] is None
    state = play.reset(0)
    for _ in range(10):
        wheel, *switches = np.split(np.array(state["probabilities"]), [4, 6, 8])
        assert [part.sum() for part in (wheel, *switches)] == pytest.approx([1.0] * 4)
        assert (wheel == 0.0).sum() == 1 and switches[2].tolist() == [1.0, 0.0]
        assert state["next_action"][0] == wheel.argmax()
        state = play.step(None)
    allowed = [int(np.flatnonzero(state["probabilities"][:4])[0]), 1, 0, 0]
    forbidden = [int(np.flatnonzero(np.array(state["probabilities"][:4]) == 0.0)[0]), 1, 0, 0]
    for wrong in (forbidden, [4, 0, 0, 0], [-1, 0, 0, 0], [0.5, 0, 0, 0], [0, 0, 0], 1):
        with pytest.raises(PlayError) as refused:
            play.step(wrong)
        assert refused.value.code == "invalid_request"
    assert (play.step(allowed)["action"], state["step"]) == (allowed, 10)
