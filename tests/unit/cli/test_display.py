"""What a user sees of a run: plain lines in a pipe, a live view on a terminal."""

from __future__ import annotations

import dataclasses
import io
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_service.cli.display import TrainDisplay, _title, sparkline
from rl_service.config.settings import Settings
from rl_service.training.observer import TrainResult

RUN = "runs/experiment/20260101-000000-abc"
BUNDLE = "checkpoints/gpt2_critic/LunarLander-v3/0123456789"


def row(iteration: int, episode_return: float | None = None) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 2048 * iteration,
        "episode_return_mean": episode_return,
        "episode_len_mean": 91.4,
        "env_steps_per_s": 1903.2,
        "iteration_time_s": 2.0,
    }


EVALUATION = {
    "training_iteration": 2,
    "evaluation/episode_return_mean": 12.34,
    "evaluation/episode_return_std": 45.6,
}


@pytest.fixture
def result(in_tmp_path: Path) -> TrainResult:
    return TrainResult(
        env="LunarLander-v3",
        algo="ppo",
        model="gpt2_critic",
        seed=123,
        episodes=20,
        episode_return_mean=81.34,
        episode_return_std=60.21,
        env_steps=307_200,
        env_steps_per_s=1930.4,
        iterations=150,
        policy=str(in_tmp_path / BUNDLE),
        registered="lunarlander-v3-gpt2_critic-ppo:3",
        run=str(in_tmp_path / RUN),
        status="finished",
    )


def play(progress: TrainDisplay, result: TrainResult, resumed: int = 0) -> None:
    with progress:
        progress.on_message("a note")
        progress.on_start(Settings(), Path(result.run), 150, resumed)
        progress.on_iteration(row(1))
        progress.on_iteration(row(2, -183.21))
        progress.on_evaluation(EVALUATION)
        progress.on_finish(result)


def plain_text(result: TrainResult, resumed: int = 0) -> str:
    out = io.StringIO()
    play(TrainDisplay(out), result, resumed)
    return out.getvalue()


def test_plain_lines_name_the_run_and_stand_in_columns(result: TrainResult) -> None:
    assert plain_text(result).splitlines()[:7] == [
        "a note",
        "Training gpt2_critic with ppo on LunarLander-v3, seed 123, 2 rollout workers",
        RUN,
        "  iteration        steps    return   length  steps/s   left",
        "      1/150        2,048         –       91    1,903   4:58",
        "      2/150        4,096    -183.2       91    1,903   0:00",
        " evaluation                   12.3 ± 45.6",
    ]


def test_a_run_with_several_learners_says_so() -> None:
    settings = Settings()
    resources = settings.resources.model_copy(update={"num_learners": 3})
    title = _title(settings.model_copy(update={"resources": resources}))
    assert title.endswith("2 rollout workers, 3 learners")


def test_plain_lines_have_no_control_characters(result: TrainResult) -> None:
    assert "\x1b" not in plain_text(result)
    assert "\r" not in plain_text(result)


def test_a_resumed_run_says_from_where(result: TrainResult) -> None:
    assert f"{RUN}, resumed after iteration 40" in plain_text(result, resumed=40)


def test_the_end_shows_the_evaluation_and_three_commands_to_copy(result: TrainResult) -> None:
    lines = plain_text(result).splitlines()
    assert "Finished: 150 iterations, 307,200 env steps at 1,930 steps/s." in lines
    assert "81.3 ± 60.2" in next(line for line in lines if line.startswith("  LunarLander-v3"))
    assert f"Best policy: {BUNDLE}" in lines
    assert "In the registry: lunarlander-v3-gpt2_critic-ppo:3" in lines
    assert f"  rl-service evaluate {BUNDLE}" in lines
    assert f"  rl-service train --resume {RUN} -ne 300" in lines
    assert "  rl-service ui ." in lines


def test_a_stopped_run_can_be_resumed_as_it_is(result: TrainResult) -> None:
    none = {"policy": None, "registered": None}
    stopped = dataclasses.replace(result, status="stopped", episodes=0, **none)
    lines = plain_text(stopped).splitlines()
    assert f"  rl-service train --resume {RUN}" in lines
    for text in ("rl-service evaluate", "Best policy", "In the registry"):
        assert not any(text in line for line in lines)


def test_the_reader_of_a_pipe_may_leave_early(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from rl_service.cli.display import TrainDisplay\n"
        "progress = TrainDisplay(sys.stdout)\n"
        "for i in range(20000): progress.on_message('line %d' % i)\n"
        "print('trained to the end', file=sys.stderr)\n"
    )
    command = f'{sys.executable} -c "{program}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("line 0\n", "trained to the end\n")


class Terminal:
    """A real pseudo-terminal and what was shown on it."""

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        self.stream = os.fdopen(follower, "w", encoding="utf-8")

    def shown(self) -> str:
        """All that was written; the kernel hands it over a little later, and in pieces."""
        self.stream.flush()
        pieces = []
        while select.select([self._leader], [], [], 0.3)[0]:
            pieces.append(os.read(self._leader, 1 << 20))
        return b"".join(pieces).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._leader)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    yield terminal
    terminal.close()


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_the_live_view_shows_steps_return_speed_and_time_left(
    terminal: Terminal, result: TrainResult
) -> None:
    play(TrainDisplay(terminal.stream), result)
    shown = terminal.shown()
    for text in ("iteration   2/150", "-183.2", "4,096", "1,903", "left", "12.3 ± 45.6"):
        assert text in shown
    assert "best so far" in shown
    assert "Starting the rollout workers" in shown
    assert "Finished: 150 iterations" in shown


def test_the_cursor_is_back_after_the_end_and_after_an_exception(
    terminal: Terminal, result: TrainResult
) -> None:
    with pytest.raises(ZeroDivisionError), TrainDisplay(terminal.stream) as progress:
        progress.on_start(Settings(), Path(result.run), 150, 0)
        raise ZeroDivisionError
    shown = terminal.shown()
    assert HIDE_CURSOR in shown
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def test_the_cursor_is_back_if_a_run_fails_before_its_first_step(terminal: Terminal) -> None:
    with pytest.raises(ZeroDivisionError), TrainDisplay(terminal.stream):
        raise ZeroDivisionError
    shown = terminal.shown()
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def test_a_resumed_view_knows_the_best_evaluation_of_before(
    terminal: Terminal, result: TrainResult
) -> None:
    Path(RUN).mkdir(parents=True)
    Path(RUN, "progress.jsonl").write_text('{"evaluation/episode_return_mean": 99.5}\n')
    play(TrainDisplay(terminal.stream), result)
    shown = terminal.shown()
    assert "best so far" not in shown
    assert "99.5" in shown


def test_commands_are_never_wrapped(
    terminal: Terminal, result: TrainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    play(TrainDisplay(terminal.stream), result)
    assert f"rl-service evaluate {BUNDLE}" in terminal.shown()


def test_the_display_suits_the_stream(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrainDisplay(terminal.stream).is_live
    assert not TrainDisplay(io.StringIO()).is_live
    monkeypatch.setenv("TERM", "dumb")
    assert not TrainDisplay(terminal.stream).is_live


def test_a_rising_curve_rises() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], width=8) == "▁▂▃▄▅▆▇█"


def test_a_long_curve_is_averaged_into_the_width() -> None:
    assert sparkline([0, 2, 9, 11, 0, 2], width=3) == "▁█▁"
    assert len(sparkline(list(range(1000)), width=24)) == 24


def test_a_flat_and_an_empty_curve_can_be_drawn() -> None:
    assert sparkline([5.0, 5.0], width=8) == "▁▁"
    assert sparkline([], width=8) == ""
