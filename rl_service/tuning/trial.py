"""One trial: a configuration, trained with one or more seeds side by side, in one process."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from pyarrow.fs import FileSelector
from ray import tune

from rl_service.common.errors import EnvError, SettingsError, TrainingFailedError
from rl_service.common.metrics import ENV_STEPS, NUMERIC, json_row
from rl_service.config.settings import Settings
from rl_service.runtime.process import random_state, set_random_state
from rl_service.training.best_policy import BestPolicy
from rl_service.training.trainer import Trainer, evaluation_row
from rl_service.tuning.observer import TRAINING_PREFIX
from rl_service.tuning.plan import BEST_SCORE, ENDED, SCORE, SPEED
from rl_service.tuning.space import SearchSpace

BUNDLE = "best"
"""Folder of a seed's best policy within the seed's folder of a checkpoint."""
PROGRESS = "progress.jsonl"
"""Every iteration up to the state it lies beside (keys of `rl_service.common.metrics.METRICS`)."""
SEED_SPACING = 100
"""Between the seeds of a trial, of which each plays final episodes from its seed on."""
_RESULT = "result.json"
_SCORE = "score.json"
_SIZES = "sizes.json"


def member_seeds(seed: int, num_seeds: int) -> range:
    """Seeds of a trial's trainings, so far apart that their evaluations share no episode."""
    return range(seed, seed + SEED_SPACING * num_seeds, SEED_SPACING)


def seed_folder(seed: int) -> str:
    """Folder of a seed within a trial's checkpoint."""
    return f"seed_{seed}"


class TuningTrial(tune.Trainable):  # type: ignore[misc]
    """Trains until the next evaluation, and reports."""

    def setup(
        self,
        config: dict[str, Any],
        space: SearchSpace,
        num_seeds: int,
        store_variables: Mapping[str, str],
    ) -> None:
        """Starts the trainings.

        Args:
            config: coordinates of the trial in the search space.
            space: what they are coordinates of.
            num_seeds: trainings.
            store_variables: of the environment, that reach an object store.
        """
        os.environ.update(store_variables)
        self._space = space
        self._num_seeds = num_seeds
        self._members: list[_Member] = []
        self._last: dict[str, Any] | None = None
        self._refusal: SettingsError | EnvError | None = None
        self._saved: list[tune.Checkpoint] = []
        """Checkpoints of the next reports, where Tune was killed before it noted them."""
        self._start(config)

    def _start(self, config: Mapping[str, Any]) -> None:
        values = self._space.values(config)
        seeds = member_seeds(self._space.base.seed, self._num_seeds)
        try:
            settings = [self._space.settings(values, seed) for seed in seeds]
            self._saved = self._saved_after(-1)
            for each in settings:  # one by one, so that `cleanup` closes those that were made
                self._members.append(_Member(each, self.trial_id))
        except (SettingsError, EnvError) as error:
            # Raised by `step`: of what fails in `setup` Tune learns no more than that it did.
            self._refusal = error

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes another configuration in the same process, which spares seconds of imports."""
        self.cleanup()
        self._last = None
        self._start(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Trains every seed until its next score.

        Raises:
            EnvError: if the environment cannot be made with the values that were drawn.
            SettingsError: if they contradict each other.
            TrainingFailedError: if a training cannot continue or has no finite score.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._load_next_saved():
            return dict(self._last or {})
        # A trial that had ended before the experiment was killed comes back as if it had not.
        if self._last is None or not all(member.trainer.is_done for member in self._members):
            rows = [member.train_to_next_score() for member in self._members]
            is_done = all(member.trainer.is_done for member in self._members)
            self._last = _report(self._members, rows) | {"done": is_done, ENDED: is_done}
        return dict(self._last)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes every seed's state and best policy."""
        for member in self._members:
            folder = Path(checkpoint_dir, seed_folder(member.seed))
            folder.mkdir()
            member.save(folder)
        Path(checkpoint_dir, _RESULT).write_text(json.dumps(self._last), encoding="utf-8")
        sizes = _sizes(Path(checkpoint_dir))
        Path(checkpoint_dir, _SIZES).write_text(json.dumps(sizes), encoding="utf-8")

    def restore(self, checkpoint_path: Any) -> None:
        """Continues from a checkpoint, and from those that this trial has saved after it.

        One that is no longer kept, since Tune resumes from an older snapshot, stands for the
        oldest of those.
        """
        path, saved = Path(checkpoint_path.checkpoint.path), []
        if self._storage and str(path.parent) == self._storage.trial_fs_path:  # not a donor's
            saved = self._saved_after(int(path.name.rpartition("_")[2]) - 1)
        if saved and Path(saved[0].path).name != path.name:
            checkpoint_path = type(checkpoint_path)(saved[0], checkpoint_path.metrics)
        super().restore(checkpoint_path)
        self._saved = saved[1:]

    def _saved_after(self, index: int) -> list[tune.Checkpoint]:
        """This trial's checkpoints with greater indices, in their order."""
        if not self._storage:
            return []
        folder, files = self._storage.trial_fs_path, self._storage.storage_filesystem
        there = files.get_file_info(FileSelector(folder, allow_not_found=True))
        names = sorted(file.base_name for file in there if file.base_name.startswith("checkpoint_"))
        return [
            tune.Checkpoint(f"{folder}/{name}", files)
            for name in names
            if int(name.rpartition("_")[2]) > index
        ]

    def _load_next_saved(self) -> bool:
        """Loads the state after the next report, unless it was not saved or half a file."""
        while self._saved:
            with self._saved.pop(0).as_directory() as folder:
                if _is_whole(Path(folder)) and self._is_later(Path(folder)):
                    self.load_checkpoint(folder)
                    return True
            self._saved = []
        return False

    def _is_later(self, checkpoint: Path) -> bool:
        """Whether a state lies ahead: after an older snapshot Tune gives indices a second time."""
        result = json.loads((checkpoint / _RESULT).read_text(encoding="utf-8"))
        return self._last is None or bool(result[ENV_STEPS] > self._last[ENV_STEPS])

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continues from a checkpoint, also of another trial and with other settings than its."""
        for member in self._members:
            member.restore(Path(checkpoint_dir, seed_folder(member.seed)))
        self._last = json.loads(Path(checkpoint_dir, _RESULT).read_text(encoding="utf-8"))

    def cleanup(self) -> None:
        """Ends the trainings."""
        self._refusal = None
        while self._members:
            self._members.pop().close()


def _is_whole(checkpoint: Path) -> bool:
    """Whether all files are there as they were written: a kill may leave some, or half of one."""
    try:
        written: dict[str, int] = json.loads((checkpoint / _SIZES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return written.items() <= _sizes(checkpoint).items()


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of a checkpoint."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != _SIZES)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


class _Member:
    """The training of one seed, and its best policy so far."""

    def __init__(self, settings: Settings, trial_id: str) -> None:
        self.seed = settings.seed
        self.trainer = Trainer(settings)
        self._folder = tempfile.TemporaryDirectory(prefix="rl-service-trial-")
        bundle = Path(self._folder.name, BUNDLE)
        self.best = BestPolicy(bundle, f"{trial_id}_{seed_folder(self.seed)}", self.trainer.algo)
        self.score: float | None = None
        """The newest."""
        self._rows: list[dict[str, Any]] = []
        self._random_state = random_state()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Random numbers are those of a training that has the process to itself."""
        set_random_state(self._random_state)
        yield
        self._random_state = random_state()

    def close(self) -> None:
        self.trainer.close()
        self._folder.cleanup()

    def train_to_next_score(self) -> dict[str, Any]:
        """Numbers of the last iteration, which may be an earlier one if this seed has ended."""
        with self._turn():
            while not self.trainer.is_done:
                row = self.trainer.iterate()
                evaluated = self._evaluated()
                self._rows.append(json_row(row | (evaluated or {})))
                if evaluated is not None:
                    break
        if self.score is None or not math.isfinite(self.score):
            raise TrainingFailedError(
                f"seed {self.seed} has no finite score after {self.trainer.algo.env_steps} env "
                f"steps: its episodes never end or its returns are not finite"
            )
        return self._rows[-1]

    def _evaluated(self) -> dict[str, float] | None:
        """Scores the policy if it is time; None if it is not, or there is nothing to score."""
        if self.trainer.settings.evaluation.interval == 0:
            self.score = self.trainer.progress.return_mean
            self.best.keep_if_better_in_training(self.score)
            return None if self.score is None else {}
        if not self.trainer.evaluation_is_due:
            return None
        try:
            result = self.trainer.evaluate()
        except EnvError as error:
            raise TrainingFailedError(f"seed {self.seed} has no score: {error}") from error
        self.score = result.mean
        self.best.keep_if_better(result)
        return evaluation_row(result)

    def save(self, folder: Path) -> None:
        with self._turn():
            self.trainer.save(folder)
        (folder / _SCORE).write_text(json.dumps(self.score), encoding="utf-8")
        lines = (json.dumps(row) + "\n" for row in self._rows)
        (folder / PROGRESS).write_text("".join(lines), encoding="utf-8")
        if self.best.exists:
            shutil.copytree(self.best.path, folder / BUNDLE)

    def restore(self, folder: Path) -> None:
        with self._turn():
            self.trainer.restore(folder)
        self.score = json.loads((folder / _SCORE).read_text(encoding="utf-8"))
        lines = (folder / PROGRESS).read_text(encoding="utf-8").splitlines()
        self._rows = [json.loads(line) for line in lines]
        if (folder / BUNDLE).exists():
            self.best.adopt(folder / BUNDLE)


def _report(members: list[_Member], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The trial's numbers: means over its seeds of what each reports, and the scores."""
    steps = [member.trainer.algo.env_steps for member in members]
    seconds = sum(member.trainer.progress.time_total_s for member in members)
    bests = [member.best.score for member in members if member.best.score is not None]
    scores = [member.score for member in members if member.score is not None]
    means = {
        f"{TRAINING_PREFIX}{key}": fmean(known)
        for key in sorted(NUMERIC)
        if (known := [row[key] for row in rows if row.get(key) is not None])
    }
    return means | {
        SCORE: fmean(scores),
        BEST_SCORE: fmean(bests),
        "seed_scores": scores,
        ENV_STEPS: max(steps),
        SPEED: sum(steps) / seconds,
    }
