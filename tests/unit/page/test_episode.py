"""A played episode: what the policy reads, does and expects, and what a client may send."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from custom_models.configs import LLMPolicyConfig
from custom_models.history import RunningHistory
from rl_service.common.errors import EnvError
from rl_service.page.child import PlayError
from rl_service.page.episode import PlayedEpisode
from rl_service.policies import load_bundle
from rl_service.policies.locate import find_policy
from rl_service.policies.runner import critic_of
from rl_service.training.evaluation import evaluate
from tests.conftest import WriteTestBundle
from tests.support.bundles import edit_spec
from tests.support.language_models import SMALL, TOKENS
from tests.support.small_runs import GPT2_ACTOR

LUNAR_LANDER = find_policy("zoo:lunarlander")


def played(bundle: Path, *allow_modules: str) -> PlayedEpisode:
    return PlayedEpisode(bundle, None, allow_modules)


def picture(state: dict[str, Any]) -> Image.Image:
    kind, _, text = state["frame"].partition(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_a_whole_episode_has_the_return_of_an_evaluation_and_is_drawn() -> None:
    policy = load_bundle(LUNAR_LANDER)
    expected = evaluate(policy, policy.spec.env, num_episodes=1, seed=3)
    play = played(LUNAR_LANDER)
    assert play.description == {
        "env": "LunarLander-v3",
        "actions": ["nothing", "left engine", "main engine", "right engine"],
        "keys": {"ArrowLeft": 1, "ArrowUp": 2, "ArrowRight": 3},
        "fps": 50,
        "has_value": True,
    }
    first = state = play.reset(3)
    total = 0.0
    while not state["ended"]:
        decided = state["next_action"]
        assert state["probabilities"][decided] == max(state["probabilities"])
        state = play.step(None)
        total += state["reward"]
        assert state["action"] == decided
    assert (state["step"], state["episode_return"]) == (expected.lengths[0], expected.returns[0])
    assert total == pytest.approx(expected.returns[0])
    shown = picture(state)
    assert (shown.format, shown.size) == ("JPEG", (600, 400))
    with pytest.raises(PlayError, match="reset") as refused:
        play.step(None)
    assert (refused.value.code, refused.value.status) == ("episode_ended", 409)
    assert play.reset(3) == first


@pytest.mark.parametrize(("key", "sign"), [("ArrowLeft", -1), ("ArrowRight", 1)])
def test_an_arrow_pushes_the_lander_where_it_points(key: str, sign: int) -> None:
    play = played(LUNAR_LANDER)
    pushed, idle = [], []
    for action, speeds in ((play.description["keys"][key], pushed), (0, idle)):
        play.reset(0)
        speeds += [play.step(action)["observation"][2] for _ in range(8)]
    assert sign * (pushed[-1] - idle[-1]) > 0.01


def test_a_client_that_takes_over_becomes_a_part_of_what_the_actor_and_the_critic_read(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = GPT2_ACTOR.model_copy(update={"history_actions": True})
    write_test_bundle(tmp_path / "p", "CartPoleNoVel-v1", model=model, filtered=True)
    policy, critic = load_bundle(tmp_path / "p"), critic_of(tmp_path / "p")
    play = played(tmp_path / "p")
    assert play.description["keys"] == {"ArrowLeft": 0, "ArrowRight": 1}
    running = [
        RunningHistory(1, length, policy.action_spec)
        for length in (policy.actor.context_length, critic.context_length)
    ]
    state = play.reset(1)
    for step, action in enumerate([None, 1, 0, 1, None, 0, 1, 0, None]):
        obs = np.array([state["observation"]], np.float32)
        seen, critic_seen = (history.observed(obs) for history in running)
        chosen = policy.act(obs, deterministic=True, history=seen)
        weights = np.exp(chosen.dist_inputs[0])
        np.testing.assert_allclose(state["probabilities"], weights / weights.sum(), rtol=1e-5)
        assert state["next_action"] == chosen.actions[0]
        assert state["value"] == pytest.approx(
            float(critic.values(critic_seen, np.array([step]))[0]), rel=1e-5
        )
        taken = chosen.actions[0] if action is None else action
        for history in running:
            history.acted(np.array([taken]))
        state = play.step(action)
        assert (state["step"], state["action"]) == (step + 1, taken)


def test_ask_answers_for_another_observation_and_moves_nothing(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "CartPoleNoVel-v1", model=GPT2_ACTOR)
    play, undisturbed = played(tmp_path / "p"), played(tmp_path / "p")
    assert play.reset(1) == undisturbed.reset(1)
    for action in (1, None, 0, None):
        state = play.step(action)
        assert state == undisturbed.step(action)
        other = play.ask([2.0, 0.0, -0.2, 0.0])
        assert other["probabilities"] != state["probabilities"]
        same = play.ask(state["observation"])
        assert same.pop("action") == state["next_action"]
        assert same == {key: state[key] for key in same}


def test_a_gaussian_policy_shows_its_mean_and_deviation_in_its_own_units(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "Pendulum-v1")
    play = played(tmp_path / "p")
    assert (play.description["actions"], play.description["keys"]) == (None, {})
    state = play.reset(0)
    assert state["probabilities"] is None
    assert state["next_action"] == pytest.approx([2.0 * state["mean"][0]])
    assert state["std"] == [1.0]
    assert play.step([-1.5])["action"] == [-1.5]
    assert play.step(None)["action"] != [-1.5]
    assert picture(state).size == (500, 500)


@pytest.mark.parametrize("model", [SMALL, TOKENS], ids=["head", "tokens"])
def test_a_language_model_shows_the_text_that_it_reads(
    model: LLMPolicyConfig, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    model = model.model_copy(update={"context_length": 2, "decimals": 1, "task": "Balance!\n"})
    write_test_bundle(tmp_path / "p", model=model)
    play = played(tmp_path / "p")
    first = play.reset(0)
    second = play.step(1)

    def numbers(state: dict[str, Any]) -> str:
        # Adding 0 turns -0.0 into 0.0.
        return " ".join(f"{round(x, 1) + 0.0:.1f}" for x in state["observation"])

    cue = "\nAction:" if model.action_scoring == "tokens" else ""
    assert first["prompt"] == f"Balance!\n{numbers(first)}{cue}"
    assert second["prompt"] == f"Balance!\n{numbers(first)} -> 1\n{numbers(second)}{cue}"
    assert math.isfinite(second["value"])


def test_a_critic_that_cannot_be_asked_alone_has_no_value(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", model=SMALL.model_copy(update={"critic": "hidden_state"}))
    play = played(tmp_path / "p")
    assert (play.description["has_value"], play.reset(0)["value"]) == (False, None)


@pytest.mark.parametrize("action", [2, -1, 1.0, True, "1", [1], math.nan])
def test_an_action_that_is_none_is_refused_and_nothing_moves(
    action: Any, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p")
    play = played(tmp_path / "p")
    play.reset(0)
    with pytest.raises(PlayError, match="integer from 0 to 1") as refused:
        play.step(action)
    assert (refused.value.code, refused.value.status) == ("invalid_request", 422)
    assert play.step(None)["step"] == 1


@pytest.mark.parametrize("action", [[2.1], [math.nan], [0.0, 0.0], 0.0, ["1"], [True], [10**400]])
def test_a_continuous_action_outside_of_its_space_is_refused(
    action: Any, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "Pendulum-v1")
    play = played(tmp_path / "p")
    play.reset(0)
    with pytest.raises(PlayError) as refused:
        play.step(action)
    assert refused.value.code == "invalid_request"


@pytest.mark.parametrize("obs", [[0.0] * 3, [0.0] * 3 + [math.inf], None, "0000", [1e39] * 4])
def test_an_observation_that_the_policy_cannot_read_is_refused(
    obs: Any, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p")
    play = played(tmp_path / "p")
    play.reset(0)
    with pytest.raises(PlayError, match="4 finite numbers") as refused:
        play.ask(obs)
    assert refused.value.code == "invalid_request"


def test_an_environment_of_a_module_is_imported_only_if_the_operator_allows_it(
    tmp_path: Path, write_test_bundle: WriteTestBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_cart_pole.py").write_text(
        "from pathlib import Path\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "class Own(CartPoleEnv): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bundle, mark = tmp_path / "p", tmp_path / "imported"
    write_test_bundle(bundle)
    for env_id in ("own_cart_pole:Own", "own_cart_pole:Own-v0"):
        edit_spec(bundle, lambda spec, env_id=env_id: spec["env"].update(id=env_id))
        with pytest.raises(EnvError, match="--allow-module own_cart_pole"):
            played(bundle)
        with pytest.raises(EnvError, match="--allow-module own_cart_pole"):
            played(bundle, "own_cart")
    edit_spec(bundle, lambda spec: spec["env"].update(id="Own-v0"))
    with pytest.raises(EnvError, match="gymnasium has no such environment here"):
        played(bundle, "own_cart_pole")
    kwargs = {"env_id": "own_cart_pole:Own"}  # which gymnasium would import, too
    edit_spec(bundle, lambda spec: spec["env"].update(id="CartPoleNoVel-v1", kwargs=kwargs))
    with pytest.raises(EnvError, match="holds text"):
        played(bundle)
    described = {"id": "CartPole-v1", "kwargs": {}, "describe": "own_cart_pole:Own"}
    edit_spec(bundle, lambda spec: spec["env"].update(described))
    with pytest.raises(EnvError, match=r"env\.describe would import the module own_cart_pole"):
        played(bundle)
    assert not mark.exists()
    edit_spec(bundle, lambda spec: spec["env"].update(id="own_cart_pole:Own", describe=None))
    assert played(bundle, "own_cart_pole").reset(0)["step"] == 0
    assert mark.exists()


def test_an_environment_that_draws_nothing_is_refused_with_the_reason(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "Recall-v0")
    with pytest.raises(EnvError, match="Recall-v0 is not played: it has no render mode rgb_array"):
        played(tmp_path / "p")


def test_entries_that_are_hidden_and_other_actions_are_shown_as_they_are(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "p", "Acrobot-v1", hide=(0, 2), max_episode_steps=2)
    play = played(tmp_path / "p")
    state = play.reset(0)
    assert (state["observation"][0], state["observation"][2]) == (0.0, 0.0)
    assert len(play.description["actions"]) == 3
    assert [play.step(None)["ended"] for _ in range(2)] == [False, True]
