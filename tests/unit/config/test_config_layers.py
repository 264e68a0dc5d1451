"""Which of several sources has the last word, and that a written-down run reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.common.errors import SettingsError
from rl_service.config.load import dump_settings, load_settings
from rl_service.config.settings import Settings


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_preset_beats_the_defaults() -> None:
    loaded = load_settings(env="CartPole-v1", model="mlp")
    assert Settings().algorithm.train_batch_size == 2048
    assert loaded.settings.algorithm.train_batch_size == 1024
    assert loaded.notes == ["settings start from the preset tuned/CartPole-v1_mlp"]


def test_a_file_beats_the_preset(tmp_path: Path) -> None:
    config = write(
        tmp_path, "env: {id: CartPole-v1}\nmodel: {name: mlp}\nalgorithm: {gamma: 0.5}\n"
    )
    settings = load_settings(config=config).settings
    assert settings.algorithm.gamma == 0.5
    assert settings.algorithm.train_batch_size == 1024  # still the preset's


def test_a_flag_beats_the_file(tmp_path: Path) -> None:
    config = write(tmp_path, "seed: 1\nenv: {id: CartPole-v1}\n")
    settings = load_settings(config=config, env="Acrobot-v1", flags={"seed": 2}).settings
    assert (settings.seed, settings.env.id) == (2, "Acrobot-v1")


def test_an_override_beats_the_flag() -> None:
    settings = load_settings(
        env="CartPole-v1", flags={"seed": 2}, overrides=["seed=3", "env.id=Acrobot-v1"]
    ).settings
    assert (settings.seed, settings.env.id) == (3, "Acrobot-v1")


def test_a_flag_that_is_none_was_not_given(tmp_path: Path) -> None:
    config = write(tmp_path, "seed: 7\n")
    assert load_settings(config=config, flags={"seed": None}).settings.seed == 7


def test_an_environment_without_a_preset_gets_the_defaults() -> None:
    loaded = load_settings(env="MountainCar-v0", model="mlp")
    assert loaded.settings.algorithm == Settings().algorithm
    assert loaded.notes == []


@pytest.mark.parametrize(
    ("text", "group", "key", "value"),
    [
        ("algorithm.actor_lr=1e-4", "algorithm", "actor_lr", 1e-4),
        ("algorithm.train_batch_size=4e3", "algorithm", "train_batch_size", 4000),
        ("algorithm.grad_clip=null", "algorithm", "grad_clip", None),
        ("model.hidden_sizes=[256, 128]", "model", "hidden_sizes", (256, 128)),
        ("tracking.tensorboard=false", "tracking", "tensorboard", False),
    ],
)
def test_the_value_of_an_override_is_yaml(text: str, group: str, key: str, value: object) -> None:
    settings = load_settings(overrides=[text]).settings
    assert getattr(getattr(settings, group), key) == value


def test_an_override_adds_one_argument_of_the_environment(tmp_path: Path) -> None:
    config = write(tmp_path, "env: {id: MyEnv-v0, kwargs: {gravity: -5.0, wind: true}}\n")
    settings = load_settings(config=config, overrides=["env.kwargs.wind=false"]).settings
    assert settings.env.kwargs == {"gravity": -5.0, "wind": False}


def test_whoever_asks_for_iterations_takes_the_presets_env_steps_away() -> None:
    preset = load_settings(env="CartPole-v1", model="mlp").settings.stop
    assert (preset.iterations, preset.env_steps) == (None, 100_000)
    stop = load_settings(env="CartPole-v1", model="mlp", flags={"stop.iterations": 900}).settings
    assert (stop.stop.iterations, stop.stop.env_steps) == (900, None)


def test_a_source_that_gives_both_lengths_keeps_both() -> None:
    stop = load_settings(overrides=["stop.iterations=9", "stop.env_steps=99"]).settings.stop
    assert (stop.iterations, stop.env_steps) == (9, 99)


def test_dumped_settings_read_back_to_the_same_settings(tmp_path: Path) -> None:
    settings = load_settings(
        env="Pendulum-v1",
        model="gpt2_critic",
        flags={"seed": 5, "stop.time_s": 1.5},
        overrides=["env.kwargs.g=9.81", "algorithm.critic_lr=1e-5", "evaluation.interval=0"],
    ).settings
    assert load_settings(config=write(tmp_path, dump_settings(settings))).settings == settings


def test_an_empty_argument_list_of_a_dump_is_not_filled_again(tmp_path: Path) -> None:
    settings = load_settings(env="Pendulum-v1").settings
    config = write(tmp_path, dump_settings(settings))
    assert load_settings(config=config).settings.env.kwargs == {}


def test_an_empty_file_and_an_empty_group_give_nothing(tmp_path: Path) -> None:
    assert load_settings(config=write(tmp_path, "")).settings == load_settings().settings
    assert load_settings(config=write(tmp_path, "env:\n")).settings == load_settings().settings


def test_a_shipped_file_is_found_by_its_name() -> None:
    settings = load_settings(config=Path("quickstart")).settings
    assert (settings.env.id, settings.model.name) == ("LunarLander-v3", "gpt2_critic")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n", "expected groups such as `algorithm:`, got list"),
        ("a: [1\n", "is not valid YAML"),
        ("seed: 1\nseed: 2\n", "key seed is given twice"),
        ("algorithm: {gamma: 0.9, gamma: 0.8}\n", "key gamma is given twice"),
        ("env: LunarLander-v3\n", "env='LunarLander-v3' (from "),
    ],
)
def test_a_malformed_file_is_refused_with_its_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(config=write(tmp_path, text))
    assert reason in str(caught.value)
    assert "settings.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8 text"):
        load_settings(config=path)


def test_a_missing_file_names_the_nearest_preset() -> None:
    with pytest.raises(SettingsError, match="did you mean the preset quickstart"):
        load_settings(config=Path("quickstat"))
