"""Training for real: exact resume, separate learning rates, faults, every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.policy.sample_batch import SampleBatch

from custom_models.configs import MLPConfig
from custom_models.interfaces import Chunks
from custom_models.model_config import ModelConfig
from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.build import build_algorithm
from rl_service.common.errors import CheckpointError, TrainingFailedError
from rl_service.config.algorithms import (
    A2CSettings,
    OnPolicySettings,
    PPOSettings,
    TRPOSettings,
)
from rl_service.config.settings import ResourceSettings
from rl_service.policies import load_bundle
from rl_service.rollout.episodes import episode_seed
from rl_service.training.best_policy import BestPolicy
from rl_service.training.evaluation import evaluate
from rl_service.training.run import Run
from rl_service.training.train import train
from rl_service.training.trainer import Trainer
from tests.support.environments import ENVIRONMENTS
from tests.support.recorder import Recorder
from tests.support.small_runs import (
    GPT2,
    GPT2_ACTOR,
    MLP,
    KillsAWorker,
    assert_resume_is_exact,
    small_settings,
    weights,
)

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("model", [MLP, GPT2, GPT2_ACTOR], ids=["mlp", "gpt2_critic", "gpt2 acts"])
def test_resumed_training_equals_unbroken_training(
    model: ModelConfig, workers: int, tmp_path: Path, build: Any
) -> None:
    assert_resume_is_exact(build, small_settings(model, workers=workers), tmp_path, 2)


def test_same_seed_and_one_process_give_the_same_numbers(tmp_path: Path) -> None:
    rows = []
    for name in ("one", "two"):
        settings = small_settings(GPT2, output_dir=tmp_path / name)
        recorder = Recorder()
        train(settings, observer=recorder, run=Run.create(settings, command=[]))
        rows.append([_without_times(row) for row in recorder.rows])
    assert rows[0] == rows[1]


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.endswith("_s")}


@pytest.mark.parametrize("frozen", ["actor", "critic"])
def test_actor_and_critic_learning_rates_act_separately(frozen: str, build: Any) -> None:
    algorithm = build(small_settings(GPT2, **{f"{frozen}_lr": 1e-30}))
    before = weights(algorithm)
    algorithm.train()
    after = weights(algorithm)
    moved = {n.split(".")[0] for n in after if (before[n] - after[n]).abs().max() > 1e-12}
    assert moved == {"actor", "critic"} - {frozen}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("history_actions", [False, True])
@pytest.mark.parametrize("algorithm", [PPOSettings, A2CSettings, TRPOSettings])
def test_an_update_of_an_actor_that_reads_chunks_starts_from_what_acted(
    env: str, history_actions: bool, algorithm: type[OnPolicySettings], build: Any
) -> None:
    model = GPT2_ACTOR.model_copy(update={"history_actions": history_actions})
    built = build(small_settings(model, env=env, algorithm=algorithm))
    policy = built.learner_policy
    with torch.no_grad():  # fresh weights are so small that the oldest steps hardly count
        for weight in policy.net.actor.trunk.parameters():
            weight.mul_(8.0 if weight.dim() == 2 else 1.0)
        policy.net.actor.head.apply(
            lambda layer: getattr(layer, "weight", torch.ones(1)).mul_(50.0)
        )
    for _ in range(3):  # fragments begin in mid-episode, with other weights and statistics
        samples = built.env_runner.sample(64)
        rows = build_learner_batch(policy, samples).actor
        assert rows.loss_mask is not None
        assert rows.num_steps == len(rows.advantages[rows.loss_mask]) == 128
        with torch.no_grad():
            actual = policy.net.actor(rows.inputs)[rows.loss_mask]
            log_prob = policy.action_distribution(rows).log_prob(rows.actions)
        expected = rows.dist_inputs[rows.loss_mask]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            rows.ratio(log_prob), torch.ones_like(log_prob), rtol=0, atol=1e-4
        )
        order = torch.argsort(rows.action_logp[rows.loss_mask])
        whole = torch.from_numpy(samples["action_logp"][samples["loss_mask"]])
        torch.testing.assert_close(rows.action_logp[rows.loss_mask][order], whole.sort().values)
        policy.update_actor(build_learner_batch(policy, samples))


def test_learning_rates_fall_linearly_to_zero_over_the_run(build: Any) -> None:
    algorithm = build(small_settings(actor_lr=1e-3, critic_lr=2e-3))
    rows = [algorithm.train()["info"]["learner"] for _ in range(4)]
    assert [row["actor_lr"] for row in rows] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert [row["critic_lr"] for row in rows] == pytest.approx([2e-3, 1.5e-3, 1e-3, 5e-4])


@pytest.mark.parametrize(("given", "expected"), [(0.2, "adapted"), (0.7, 0.7), (0.0, 0.0)])
def test_a_resumed_run_keeps_its_kl_weight_unless_it_is_given_another(
    given: float, expected: Any, tmp_path: Path, build: Any
) -> None:
    first = build(small_settings(kl_coeff=0.2, kl_target=10.0))  # far above: the weight is halved
    first.train()
    first.save_checkpoint(str(tmp_path))
    resumed = build(small_settings(kl_coeff=given, kl_target=10.0))
    resumed.load_checkpoint(str(tmp_path))
    wanted = 0.1 if expected == "adapted" else expected
    assert float(resumed.learner_policy.kl_coeff) == pytest.approx(wanted)


def test_value_targets_are_learned_in_normalised_units(build: Any) -> None:
    algorithm = build(small_settings())
    algorithm.train()
    policy = algorithm.learner_policy
    assert policy.value_stats.count == 128
    values = torch.tensor([float(policy.value_stats.mean), -3.0])
    normalised = policy.normalise_values(values)
    assert float(normalised[0]) == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(policy.denormalise_values(normalised.numpy()), values, rtol=1e-5)


def test_a_kl_limit_ends_the_passes_early(build: Any) -> None:
    algorithm = build(small_settings(num_epochs=10, actor_lr=1e-2, max_kl=1e-4))
    learned = algorithm.train()["info"]["learner"]
    assert learned["num_epochs_done"] == 1
    assert learned["mean_kl_loss"] > 1e-4


def test_bundle_acts_as_the_trained_policy_on_100_observations(tmp_path: Path) -> None:
    settings = small_settings(output_dir=tmp_path, iterations=2)
    run = Run.create(settings, command=[])
    train(settings, observer=Recorder(), run=run)
    algorithm = build_algorithm(settings)
    try:
        checkpoint = run.checkpoints.latest()
        algorithm.load_checkpoint(str(checkpoint))
        observations = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
        normalizer = algorithm.observation_normalizer()
        assert normalizer is not None
        inputs = torch.from_numpy(normalizer(observations))
        with torch.no_grad():
            expected = algorithm.learner_policy.net.actor(inputs).numpy()
    finally:
        algorithm.stop()
    actual = load_bundle(run.bundle_path).act(observations, deterministic=True).dist_inputs
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("model", [MLP, GPT2], ids=["mlp", "gpt2_critic"])
def test_every_environment_trains_three_iterations(
    env: str, model: ModelConfig, build: Any
) -> None:
    algorithm = build(small_settings(model, env=env, iterations=3))
    for _ in range(3):
        learned = algorithm.train()["info"]["learner"]
    assert algorithm.env_steps == 3 * 128
    assert all(np.isfinite(value) for value in learned.values())


def test_a_run_goes_on_without_a_killed_worker_and_keeps_its_batch_size(tmp_path: Path) -> None:
    settings = small_settings(workers=2, iterations=8, output_dir=tmp_path)
    run = Run.create(settings, command=[])
    killer = KillsAWorker()
    result = train(settings, observer=killer, run=run)
    assert result.status == "finished"
    steps = [row["num_env_steps_sampled_lifetime"] for row in killer.rows]
    assert steps == [128 * i for i in range(1, 9)]
    assert killer.rows[2]["num_env_runners"] == 1
    assert all(np.isfinite(row["policy_loss"]) for row in killer.rows)


def test_numbers_that_blow_up_fail_the_run_and_keep_its_last_checkpoint(tmp_path: Path) -> None:
    settings = small_settings(output_dir=tmp_path, actor_lr=1e30, lr_schedule="constant")
    run = Run.create(settings, command=[])
    with pytest.raises(TrainingFailedError, match="became NaN or infinite; lower the learning"):
        train(settings, observer=Recorder(), run=run)


class Grid(gym.Env[Any, Any]):
    """Actions of two dimensions."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2, 3))
    action_space = gym.spaces.Box(-1.0, 1.0, (2, 2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((2, 3), np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return np.zeros((2, 3), np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("model", [MLP, GPT2, GPT2_ACTOR], ids=["mlp", "gpt2_critic", "gpt2 acts"])
def test_observations_and_actions_of_any_shape_are_flattened_for_the_nets_alone(
    model: ModelConfig, build: Any, tmp_path: Path
) -> None:
    settings = small_settings(model, env=f"{__name__}:Grid")
    algorithm = build(settings)
    algorithm.train()
    assert algorithm.env_steps == 128
    BestPolicy(tmp_path / "bundle", "run", algorithm).keep_any()
    policy = load_bundle(tmp_path / "bundle")
    actions = policy.act(np.zeros((5, 2, 3)), deterministic=True).env_actions
    assert actions.shape == (5, 2, 2)
    assert evaluate(policy, settings.env, num_episodes=2, seed=0).lengths.tolist() == [50, 50]


class Arms(Grid):
    """So many actions that a likely one has a density beyond what a float holds."""

    action_space = gym.spaces.Box(-1.0, 1.0, (60,))


@pytest.mark.parametrize("algorithm", [PPOSettings, TRPOSettings])
def test_padding_of_a_chunk_never_overflows(algorithm: type[OnPolicySettings], build: Any) -> None:
    model = GPT2_ACTOR.model_copy(update={"log_std_init": -4.0})
    built = build(small_settings(model, env=f"{__name__}:Arms", algorithm=algorithm))
    learned = built.train()["info"]["learner"]
    assert all(np.isfinite(value) for value in learned.values())


class Breaking(gym.Env[Any, Any]):
    """Raises in its 20th step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 20:
            raise RuntimeError("the motor is stuck")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_always_raises_fails_the_run_with_its_own_words(
    workers: int, tmp_path: Path
) -> None:
    settings = small_settings(env=f"{__name__}:Breaking", workers=workers, output_dir=tmp_path)
    match = (
        rf"^101 episodes failed .*env\.max_failed_episodes=100; the last: rollout worker "
        rf"{workers}, env [01], reset\(seed=\d+\), step 20: RuntimeError: the motor is stuck; fix"
    )
    with pytest.raises(TrainingFailedError, match=match):
        train(settings, observer=Recorder(), run=Run.create(settings, command=[]))


@pytest.mark.parametrize(("max_timesteps", "is_told"), [(49, True), (50, False), (1, False)])
def test_episodes_beyond_the_timesteps_of_the_critic_are_told_once(
    max_timesteps: int, is_told: bool
) -> None:
    model = GPT2.model_copy(update={"time": "absolute", "max_timesteps": max_timesteps})
    messages: list[str] = []
    trainer = Trainer(small_settings(model), messages.append)  # episodes of 50 steps
    try:
        for _ in range(2):
            trainer.iterate()
    finally:
        trainer.close()
    assert len(messages) == is_told
    assert all(
        text.startswith("an episode lasted 50 env steps")
        and "start a run with max_timesteps=50, or with time=relative" in text
        for text in messages
    )


def test_the_documented_example_environment_is_solved(tmp_path: Path) -> None:
    settings = small_settings(
        env="docs.examples.own_environment:Corridor",
        iterations=20,
        output_dir=tmp_path,
        actor_lr=3e-3,
        lr_schedule="constant",
    )
    result = train(settings, observer=Recorder(), run=Run.create(settings, command=[]))
    assert result.episode_return_mean == pytest.approx(1.0 - 7 * 0.1)


def test_a_checkpoint_of_other_nets_is_refused(tmp_path: Path, build: Any) -> None:
    first = build(small_settings())
    first.save_checkpoint(str(tmp_path))
    wider = build(small_settings(MLPConfig(hidden_sizes=(32,), critic_hidden_sizes=(16,))))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        wider.load_checkpoint(str(tmp_path))
    other = build(small_settings(GPT2))
    with pytest.raises(CheckpointError, match="is of model mlp, the settings say gpt2_critic"):
        other.load_checkpoint(str(tmp_path))


def test_another_number_of_envs_plays_no_episode_again(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[tuple[int, ...]] = []

    def recorded(*stream: int) -> int:
        streams.append(stream)
        return episode_seed(*stream)

    monkeypatch.setattr("rl_service.rollout.episodes.episode_seed", recorded)
    settings = small_settings()
    first = build(settings)
    for _ in range(3):
        first.train()
    first.save_checkpoint(str(tmp_path))
    before = set(streams)
    assert len(before) >= 4
    streams.clear()
    four = settings.resources.model_copy(update={"num_envs_per_env_runner": 4})
    resumed = build(settings.model_copy(update={"resources": four}))
    resumed.load_checkpoint(str(tmp_path))
    resumed.train()
    assert len(streams) >= 4
    assert before.isdisjoint(streams)


@pytest.mark.parametrize(("attention", "n_layer"), [("window", 2), ("banded", 1), ("banded", 3)])
def test_values_of_a_trained_critic_do_not_depend_on_the_fragments(
    attention: str, n_layer: int, build: Any
) -> None:
    """The learner's values of an episode cut into fragments are those of the whole episode."""
    from rl_service.algorithms.batch import build_learner_batch, compute_outputs
    from rl_service.rollout.fragments import LOSS_MASK

    config = GPT2.model_copy(update={"attention": attention, "n_layer": n_layer, "dropout": 0.0})
    settings = small_settings(config).model_copy(
        update={"resources": ResourceSettings(num_env_runners=0, num_envs_per_env_runner=1)}
    )
    algorithm = build(settings)
    algorithm.train()  # so that values are not all alike
    sampler = algorithm.env_runner._vector_sampler
    sampler.sample(50 - int(sampler._t[0]))  # to the border of an episode
    assert sampler._t[0] == 0
    pieces = [sampler.sample(17), sampler.sample(17), sampler.sample(16)]
    policy = algorithm.learner_policy
    learned = [build_learner_batch(policy, SampleBatch(piece)).critic for piece in pieces]
    from_fragments = torch.cat([batch.outputs[batch.loss_mask] for batch in learned])
    steps = {k: np.concatenate([p[k][p[LOSS_MASK]] for p in pieces]) for k in pieces[0]}
    whole = Chunks(
        *(torch.from_numpy(steps[k])[None] for k in ("obs", "actions", "rewards", "t")),
        segment_ids=torch.zeros(1, 50, dtype=torch.int64),
    )
    expected = compute_outputs(policy, whole, 50)[0]
    torch.testing.assert_close(from_fragments, expected, rtol=0, atol=1e-5)


def test_a_model_whose_module_has_dots_trains(build: Any) -> None:
    """RLlib takes a name with a dot for the path of a class."""
    from docs.examples.reward_critic import RewardCritic

    model = RewardCritic(context_length=3, n_head=2, n_embd=8)
    assert model.name == "docs.examples.reward_critic:RewardCritic"
    assert build(small_settings(model)).train()["training_iteration"] == 1
