"""What a run that goes on may change, and what makes it the run it is."""

from __future__ import annotations

import pytest

from rl_service.common.errors import SettingsError
from rl_service.config.load import change_settings, load_settings
from rl_service.config.settings import Settings, StopSettings

RUN = Settings(
    stop=StopSettings(iterations=100, env_steps=5000, time_s=210, episode_return_mean=9.0)
)


def test_a_new_length_takes_the_place_of_every_other_criterion() -> None:
    loaded = change_settings(RUN, iterations=200, overrides=[])
    assert loaded.settings.stop == StopSettings(iterations=200)
    assert "stop.time_s is null from here on (was 210.0)" in loaded.notes
    assert len(loaded.notes) == 4


def test_numbers_are_changed_and_told_and_the_rest_stays() -> None:
    overrides = ["algorithm.actor_lr=1e-5", "resources.num_env_runners=1", "stop.time_s=600"]
    loaded = change_settings(RUN, iterations=None, overrides=overrides)
    assert loaded.settings.algorithm.actor_lr == 1e-5
    assert loaded.settings.stop.iterations == 100
    assert len(loaded.notes) == 3
    assert change_settings(RUN, iterations=None, overrides=[]).settings == RUN


def test_the_limit_of_failed_episodes_may_be_raised() -> None:
    loaded = change_settings(RUN, iterations=None, overrides=["env.max_failed_episodes=500"])
    assert loaded.settings.env.max_failed_episodes == 500
    assert loaded.notes == ["env.max_failed_episodes is 500 from here on (was 100)"]


@pytest.mark.parametrize(
    "override",
    [
        "env.id=CartPole-v1",
        "env.kwargs.gravity=-9",
        "model.n_layer=3",
        "algorithm.name=ppo",
        "tracking.output_dir=elsewhere",
        "seed=1",
    ],
)
def test_what_makes_a_run_is_refused(override: str) -> None:
    with pytest.raises(SettingsError) as caught:
        change_settings(RUN, iterations=None, overrides=[override])
    [problem] = caught.value.problems
    assert problem.startswith(f"--set {override.partition('=')[0]}: a resumed run keeps its env")


@pytest.mark.parametrize(
    ("algorithm", "override"),
    [("a2c", "algorithm.optimizer=adam"), ("trpo", "algorithm.critic_optimizer=lbfgs")],
)
def test_optimizers_whose_state_is_saved_are_kept(algorithm: str, override: str) -> None:
    run = load_settings(env="MountainCar-v0", model="mlp", algorithm=algorithm).settings
    with pytest.raises(SettingsError) as caught:
        change_settings(run, iterations=None, overrides=[override])
    [problem] = caught.value.problems
    assert problem.startswith(f"--set {override.partition('=')[0]}: a resumed run keeps its env")


def test_all_problems_are_told_together() -> None:
    overrides = ["seed=1", "algorithm.gama=1"]
    with pytest.raises(SettingsError) as caught:
        change_settings(RUN, iterations=0, overrides=overrides)
    assert len(caught.value.problems) == 3
    assert "stop.iterations=0 (from a flag): must be greater than 0" in str(caught.value)
