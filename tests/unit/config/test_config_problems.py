"""Every wrong setting is named in one line that says what, why and what to do."""

from __future__ import annotations

import pytest

from custom_models.configs import GPT2CriticConfig
from rl_service.common.errors import SettingsError
from rl_service.config.load import load_settings


def problems(*overrides: str, **names: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(overrides=overrides, **names)  # type: ignore[arg-type]
    assert not any("\n" in problem for problem in caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("algorithm.gama=0.9", "did you mean algorithm.gamma?"),
        ("algorithm.lambda=0.9", "did you mean algorithm.lambda_?"),
        ("gamma=0.9", "did you mean algorithm.gamma?"),
        ("sed=1", "did you mean seed?"),
        ("model.num_env_runners=1", "did you mean resources.num_env_runners?"),
        ("model.contextlength=3", "did you mean model.context_length?"),
        ("tracking.zzz=1", "known: output_dir, experiment"),
    ],
)
def test_an_unknown_key_leads_to_the_nearest_one(override: str, hint: str) -> None:
    [problem] = problems(override)
    assert problem.startswith(f"unknown setting {override.partition('=')[0]} (from --set)")
    assert hint in problem


def test_a_key_of_another_model_says_whose_it_is() -> None:
    [problem] = problems("model.max_timesteps=3", model="mlp")
    assert "it is a setting of the model gpt2_critic, and this run's model is mlp" in problem


def test_a_key_of_another_algorithm_says_whose_it_is() -> None:
    [problem] = problems("algorithm.clip_param=0.1", algorithm="a2c")
    assert "it is a setting of the algorithm ppo, and this run's algorithm is a2c" in problem
    [problem] = problems("algorithm.max_kl=0.1", algorithm="a2c")
    assert "a setting of the algorithm ppo and trpo, and" in problem


def test_an_iteration_of_a2c_holds_whole_updates() -> None:
    [problem] = problems(
        "resources.num_env_runners=2",
        "resources.num_envs_per_env_runner=8",
        "algorithm.rollout_fragment_length=8",
        "algorithm.train_batch_size=2000",
        algorithm="a2c",
        env="MountainCar-v0",
        model="mlp",
    )
    assert "train_batch_size=2000 is not divisible by the 128 env steps of an update" in problem
    assert problem.endswith("use 2048")
    [problem] = problems(
        "resources.num_env_runners=2",
        "algorithm.train_batch_size=8",
        algorithm="a2c",
        env="MountainCar-v0",
        model="mlp",
    )
    assert problem.endswith("use 128")


def test_settings_for_a_gpu_without_one_are_refused() -> None:
    found = problems("resources.learner_precision=bfloat16", "resources.learner_compile=true")
    assert [problem.partition(" pays")[0] for problem in found] == [
        "resources.learner_precision=bfloat16",
        "resources.learner_compile=true",
    ]


@pytest.mark.parametrize(("num_gpus", "num_learners"), [(2, 1), (1, 2), (3, 2)])
def test_each_learner_has_one_gpu_or_none_has(num_gpus: int, num_learners: int) -> None:
    sizes = f"resources.num_gpus={num_gpus}", f"resources.num_learners={num_learners}"
    [problem] = problems(*sizes)
    assert problem.startswith(f"{' and '.join(sizes)}, but each learner has one GPU; use ")
    assert f"resources.num_gpus={num_learners}" in problem
    assert f"resources.num_learners={num_gpus}" in problem


def test_a_critic_that_is_fitted_by_lbfgs_has_one_learner() -> None:
    lbfgs = "algorithm.critic_optimizer=lbfgs"
    [problem] = problems(lbfgs, "resources.num_learners=2", algorithm="trpo")
    assert problem.startswith(f"{lbfgs} fits the whole batch in one process, and resources.num_l")
    assert problem.endswith("use algorithm.critic_optimizer=adam or resources.num_learners=1")
    load_settings(overrides=[lbfgs], algorithm="trpo")
    load_settings(overrides=["resources.num_learners=2"], algorithm="trpo")


def test_a_gpu_for_each_learner_is_what_a_low_precision_asks_for() -> None:
    [problem] = problems("resources.learner_precision=bfloat16", "resources.num_learners=2")
    assert "add resources.num_gpus=2 or leave it out" in problem


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("algorithm.actor_lr=-1", "must be greater than 0"),
        ("algorithm.gamma=1.5", "must be less than or equal to 1"),
        ("algorithm.gamma=nan", "must be a finite number"),
        ("algorithm.critic_lr=.inf", "must be a finite number"),
        ("algorithm.entropy_coeff=.nan", "must be a finite number"),
        ("seed=-1", "must be greater than or equal to 0"),
        ("resources.num_learners=0", "must be greater than 0"),
        ("stop.iterations=2.5", "must be an integer"),
        ("model.dropout=1.0", "must be less than 1"),
        ("model.hidden_sizes=[64, -1]", "must be greater than 0"),
        ("algorithm.lr_schedule=cosine", "must be 'constant' or 'linear'"),
    ],
)
def test_a_value_out_of_range_is_shown_with_its_limit(override: str, reason: str) -> None:
    [problem] = problems(override)
    assert problem.startswith(override.partition("=")[0])
    assert reason in problem


@pytest.mark.parametrize("text", ["gamma", "=1", "algorithm=1", "model.a.b=1", ".gamma=1"])
def test_an_override_without_group_key_and_value_is_refused(text: str) -> None:
    [problem] = problems(text)
    assert "expected group.key=value" in problem


def test_an_override_of_an_unknown_group_names_the_nearest() -> None:
    [problem] = problems("algorithms.gamma=0.9")
    assert "unknown group algorithms; did you mean algorithm?" in problem


def test_unknown_names_list_the_known_ones() -> None:
    assert problems(model="gpt_critic") == [
        "unknown model gpt_critic; did you mean gpt2_critic? known: gpt2_critic, llm_policy, "
        "mlp, ppo_ex, ppo_gpt"
    ]
    assert problems(algorithm="a3c") == [
        "unknown algorithm a3c; did you mean a2c? known: a2c, ppo, trpo"
    ]


def test_all_problems_of_all_sources_are_reported_together() -> None:
    found = problems(
        "algorithm.gamma=2", "resources.num_env_runner=1", "seed", model="x", algorithm="y"
    )
    assert len(found) == 5
    for part in (
        "algorithm.gamma=2",
        "num_env_runners?",
        "--set seed:",
        "model x;",
        "algorithm y;",
    ):
        assert sum(part in problem for problem in found) == 1


def test_a_batch_that_the_envs_do_not_divide_names_the_next_that_they_do() -> None:
    [problem] = problems("algorithm.train_batch_size=2050", "resources.num_envs_per_env_runner=16")
    assert problem.endswith("use 2048")


def test_a_batch_smaller_than_one_step_of_every_env_is_refused() -> None:
    [problem] = problems(
        "algorithm.train_batch_size=32",
        "algorithm.minibatch_size=32",
        "resources.num_envs_per_env_runner=32",
    )
    assert "2 workers x 32 envs = 64" in problem


def test_a_batch_of_exactly_one_step_of_every_env_is_allowed() -> None:
    overrides = ["algorithm.train_batch_size=16", "algorithm.minibatch_size=16"]
    assert load_settings(overrides=overrides).settings.algorithm.train_batch_size == 16


def test_heads_that_do_not_divide_the_width_and_a_long_context_are_told_together() -> None:
    [problem] = problems("model.n_head=7", "model.context_length=1024", "model.n_positions=512")
    assert "use n_embd=63" in problem
    assert "use context_length <= 512" in problem


def test_a_context_that_just_fits_the_positions_is_allowed() -> None:
    with_actions = ["model.context_length=512", "model.history_actions=true"]
    assert load_settings(overrides=with_actions).settings is not None
    assert load_settings(overrides=["model.context_length=1024"]).settings is not None
    [problem] = problems("model.context_length=513", "model.history_actions=true")
    assert "needs 1026 positions (2 for each step)" in problem


def test_rows_of_timesteps_belong_to_absolute_time() -> None:
    [problem] = problems("model.max_timesteps=500")
    assert "max_timesteps=500 applies only to time=absolute" in problem
    absolute = load_settings(overrides=["model.time=absolute"]).settings.model
    assert isinstance(absolute, GPT2CriticConfig)
    assert absolute.num_timesteps == 1024


def test_a_context_of_an_actor_without_memory_is_refused() -> None:
    [problem] = problems("model.actor_context_length=4")
    assert "actor_context_length=4 is for an actor that remembers; set actor_net=stack" in problem
    for model in ("mlp", "gpt2_critic"):
        settings = load_settings(model=model, overrides=["model.actor_net=stack"]).settings
        assert settings.model.acting_context_length == 8


def test_actions_for_an_actor_without_memory_are_refused() -> None:
    [problem] = problems("model.history_actions=true", model="mlp")
    assert "history_actions=true is for an actor that remembers; set actor_net=stack" in problem


def test_a_gpt2_that_acts_has_sizes_that_fit() -> None:
    model = load_settings(overrides=["model.actor_net=gpt2", "model.time=absolute"]).settings.model
    assert model.acting_context_length == 8
    [problem] = problems(
        "model.actor_net=gpt2", "model.n_embd=20", "model.n_head=4", "model.time=none"
    )
    assert "actor_net=gpt2: time=relative turns pairs" in problem
    [problem] = problems("model.actor_net=gpt2", "model.pretrained=gpt2")
    assert "actor_net=gpt2: an actor has no pretrained weights" in problem
    [problem] = problems("model.actor_net=gpt2", model="mlp")
    assert "model.actor_net='gpt2' (from --set): must be 'mlp' or 'stack'" in problem
    [problem] = problems("model.actor_net=gpt2", "model.actor_context_length=0")
    assert "model.actor_context_length=0 (from --set): must be greater than 1" in problem


def test_relative_time_needs_pairs_of_numbers_in_each_head() -> None:
    [problem] = problems("model.n_head=4", "model.n_embd=12")
    assert "n_embd / n_head = 3 is odd; use n_embd=24" in problem
    assert load_settings(overrides=["model.n_head=4", "model.n_embd=12", "model.time=none"])


@pytest.mark.parametrize("name", ["minibatch_size", "critic_minibatch_size"])
def test_a_minibatch_larger_than_the_batch_is_refused(name: str) -> None:
    [problem] = problems(f"algorithm.{name}=4096")
    assert f"algorithm.{name}=4096 is larger than algorithm.train_batch_size=2048" in problem


def test_a_run_that_would_never_end_is_refused() -> None:
    [problem] = problems("stop.iterations=null", "stop.env_steps=null")
    assert "the run would never end" in problem


def test_a_linear_schedule_needs_the_length_of_the_run() -> None:
    [problem] = problems(
        "algorithm.lr_schedule=linear",
        "stop.iterations=null",
        "stop.env_steps=null",
        "stop.time_s=60",
    )
    assert "needs the length of the run" in problem
