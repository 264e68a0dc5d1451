"""Trains a policy: iterations, evaluations, checkpoints, the best policy, the record of it all."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.registry import build_algorithm
from rl_service.best_policy import BestPolicy
from rl_service.config.settings import Settings
from rl_service.errors import CheckpointError
from rl_service.evaluation import EvaluationResult, evaluate
from rl_service.policies.bundle import load_bundle
from rl_service.policies.registry import PolicyVersion
from rl_service.policies.runner import PolicyRunner
from rl_service.ray_session import ray_session
from rl_service.registration import register_best
from rl_service.runs import Run, StopRequest
from rl_service.runs.observer import TrainingObserver, TrainResult
from rl_service.runs.signals import interruptible
from rl_service.tracking import RunStatus, Tracker, build_trackers

EVALUATION_SEED_OFFSET = 1_000_000
"""Evaluations during training use other episodes than the final one, which picks nothing."""
RETURN_WINDOW = 100
"""Episodes that the training return is averaged over, as in RLlib."""
_PROGRESS_FILE = "training_progress.json"


def train(settings: Settings, *, observer: TrainingObserver, run: Run) -> TrainResult:
    """Trains until a stop criterion is met or a signal asks to stop.

    Goes on from the run's latest checkpoint if there is one.

    Before the first iteration a signal interrupts at once (`KeyboardInterrupt`): there is nothing
    to save yet. After the last one it ends the final evaluation alone; the run is finished.

    Args:
        settings: of the run; what a resumed run changes is written to its `config.yaml`.
        observer: told of every step.
        run: the folder that receives everything.

    Raises:
        CheckpointError: if the run's checkpoints are damaged or do not fit the settings, or
            another process is at work on the run.
        EnvError: if the environment cannot be made.
        OutputError: if a file cannot be written; the last checkpoint stays whole.
        ResourceError: if Ray cannot be reached or has too few CPUs.
        TrainingFailedError: if training cannot go on.
    """
    with run.lock():
        run = run.with_settings(settings)
        checkpoint = run.checkpoints.latest()
        with ray_session(settings.resources):
            algorithm = build_algorithm(settings)
            try:
                training = _Training(settings, observer, run, algorithm)
                if checkpoint is not None:
                    training.restore(checkpoint)
                return training.run_to_end()
            finally:
                algorithm.stop()


@dataclass
class _Progress:
    """What a run remembers beside the algorithm's own state."""

    time_total_s: float = 0.0
    recent_returns: list[float] = field(default_factory=list)
    """Of the last `RETURN_WINDOW` episodes, as `recent_lengths`."""
    recent_lengths: list[int] = field(default_factory=list)

    @property
    def return_mean(self) -> float | None:
        """Training return; None before the first episode has ended."""
        return float(np.mean(self.recent_returns)) if self.recent_returns else None


class _Training:
    """One run, from its first or resumed iteration to its result."""

    def __init__(
        self, settings: Settings, observer: TrainingObserver, run: Run, algo: OnPolicyAlgorithm
    ) -> None:
        self.settings = settings
        self.observer = observer
        self.run = run
        self.algo = algo
        self.progress = _Progress()
        self.best = BestPolicy(run, algo)
        self.saved_at: int | None = None  # iteration of the newest checkpoint
        self.trackers: list[Tracker] = []

    def restore(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint."""
        self.algo.load_checkpoint(str(checkpoint))
        try:
            saved = json.loads((checkpoint / _PROGRESS_FILE).read_text(encoding="utf-8"))
            self.progress = _Progress(**saved)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{checkpoint / _PROGRESS_FILE} is missing or damaged; remove that checkpoint "
                f"to resume from an earlier one"
            ) from error
        self.saved_at = self.algo.iteration

    def run_to_end(self) -> TrainResult:
        # Also without a checkpoint: a run that was killed before its first one has rows.
        self.run.rewind_progress(self.algo.iteration)
        self.trackers = build_trackers(self.run, self.settings, self.observer.on_message)
        self.observer.on_start(
            self.settings, self.run.path, self._total_iterations(), self.algo.iteration
        )
        status: RunStatus = "failed"
        try:
            with StopRequest() as stop:
                self._iterate(stop)
            ended: Literal["finished", "stopped"] = "finished" if self._is_done() else "stopped"
            status = ended
            may_play = ended == "finished" and not stop.requested
            final = self._final_evaluation() if may_play else None
            registered = self._register()
        finally:
            for tracker in self.trackers:
                tracker.finish(status)
        result = self._result(ended, final, registered)
        self.observer.on_finish(result)
        return result

    def _total_iterations(self) -> int | None:
        total = self.settings.total_env_steps
        return None if total is None else -(-total // self.settings.algorithm.train_batch_size)

    def _iterate(self, stop: StopRequest) -> None:
        interval = self.settings.tracking.checkpoint_interval
        while not stop.requested and not self._is_done():
            row = self._iteration()
            evaluated = self._evaluate_if_due()
            self.run.append_progress(row | evaluated)
            for tracker in self.trackers:
                tracker.log(row | evaluated, self.algo.env_steps)
            if self.saved_at is None or self.algo.iteration % interval == 0:
                self._checkpoint()
        if self.saved_at != self.algo.iteration:
            self._checkpoint()
        if self.algo.iteration > 0:
            self.best.keep_any()

    def _iteration(self) -> dict[str, Any]:
        started = time.perf_counter()
        steps_before = self.algo.env_steps
        learned: dict[str, float] = self.algo.train()["info"]["learner"]
        elapsed = time.perf_counter() - started
        self.progress.time_total_s += elapsed
        steps = self.algo.env_steps
        row = {
            "training_iteration": self.algo.iteration,
            "num_env_steps_sampled_lifetime": steps,
            **self._episode_metrics(),
            **learned,
            "env_steps_per_s": (steps - steps_before) / elapsed,
            "iteration_time_s": elapsed,
            "time_total_s": self.progress.time_total_s,
            "num_env_runners": self.algo.env_runner_group.num_healthy_remote_workers(),
            "num_worker_restarts": self.algo.env_runner_group.num_remote_worker_restarts(),
        }
        self.observer.on_iteration(row)
        return row

    def _episode_metrics(self) -> dict[str, float | None]:
        episodes = self.algo.pop_episodes()
        returns, lengths = self.progress.recent_returns, self.progress.recent_lengths
        returns += [episode.episode_reward for episode in episodes]
        lengths += [episode.episode_length for episode in episodes]
        del returns[:-RETURN_WINDOW], lengths[:-RETURN_WINDOW]
        return {
            "num_episodes": len(episodes),
            "episode_return_mean": self.progress.return_mean,
            "episode_return_min": min(returns) if returns else None,
            "episode_return_max": max(returns) if returns else None,
            "episode_len_mean": float(np.mean(lengths)) if lengths else None,
        }

    def _is_done(self) -> bool:
        stop = self.settings.stop
        mean = self.progress.return_mean
        return (
            (stop.iterations is not None and self.algo.iteration >= stop.iterations)
            or (stop.env_steps is not None and self.algo.env_steps >= stop.env_steps)
            or (stop.time_s is not None and self.progress.time_total_s >= stop.time_s)
            or (
                stop.episode_return_mean is not None
                and mean is not None
                and mean >= stop.episode_return_mean
            )
        )

    def _evaluate_if_due(self) -> dict[str, float]:
        """Evaluates every n iterations and after the last; keeps the policy if it is the best."""
        interval = self.settings.evaluation.interval
        if interval == 0:
            score = self.progress.return_mean
            if score is not None:
                self.best.keep_if_better(score, {"episode_return_mean": score}, source="training")
            return {}
        if self.algo.iteration % interval and not self._is_done():
            return {}
        result = evaluate(
            self._runner(),
            self.settings.env,
            num_episodes=self.settings.evaluation.num_episodes,
            seed=self.settings.seed + EVALUATION_SEED_OFFSET,
        )
        row = _evaluation_row(result)
        self.observer.on_evaluation({"training_iteration": self.algo.iteration, **row})
        if not math.isfinite(result.mean):
            self.observer.on_message(
                f"the evaluation at iteration {self.algo.iteration} has no finite mean return, so "
                f"its policy is not kept; look for NaN or infinite rewards in the environment"
            )
        self.best.keep_if_better(result.mean, _summary(result), source="evaluation")
        return row

    def _runner(self) -> PolicyRunner:
        """The policy as it is now, outside RLlib."""
        policy = self.algo.learner_policy
        return PolicyRunner(
            policy.net.actor,
            policy.observation_space.shape,
            policy.action_spec,
            self.algo.observation_normalizer(),
        )

    def _checkpoint(self) -> None:
        def write(folder: Path) -> None:
            self.algo.save_checkpoint(str(folder))
            text = json.dumps(asdict(self.progress))
            (folder / _PROGRESS_FILE).write_text(text, encoding="utf-8")

        self.run.checkpoints.save(self.algo.iteration, write)
        self.saved_at = self.algo.iteration

    def _final_evaluation(self) -> EvaluationResult | None:
        """Plays the best policy's final episodes; None if Ctrl-C ends them."""
        try:
            with interruptible():
                return evaluate(
                    load_bundle(self.run.bundle_path),
                    self.settings.env,
                    num_episodes=self.settings.evaluation.final_num_episodes,
                    seed=self.settings.seed,
                )
        except KeyboardInterrupt:
            self.observer.on_message("the final evaluation was interrupted; the run is finished")
            return None

    def _register(self) -> PolicyVersion | None:
        """Puts the best policy into the registry and the trackers; None if it is not there."""
        if not self.best.exists:
            return None
        try:
            with interruptible():
                version = register_best(self.run, self.observer.on_message)
        except KeyboardInterrupt:
            self.observer.on_message("interrupted before the best policy was in the registry")
            return None
        if version is not None:
            for tracker in self.trackers:
                tracker.log_policy(self.run.bundle_path, version)
        return version

    def _result(
        self,
        status: Literal["finished", "stopped"],
        final: EvaluationResult | None,
        registered: PolicyVersion | None,
    ) -> TrainResult:
        seconds = self.progress.time_total_s
        return TrainResult(
            env=self.settings.env.id,
            algo=self.settings.algorithm.name,
            model=self.settings.model.name,
            seed=self.settings.seed,
            episodes=0 if final is None else len(final.returns),
            episode_return_mean=None if final is None else _finite(final.mean),
            episode_return_std=None if final is None else _finite(final.std),
            env_steps=self.algo.env_steps,
            env_steps_per_s=self.algo.env_steps / seconds if seconds else 0.0,
            iterations=self.algo.iteration,
            policy=str(self.run.bundle_path) if self.best.exists else None,
            registered=registered and f"{registered.name}:{registered.version}",
            run=str(self.run.path),
            status=status,
        )


def _finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def _evaluation_row(result: EvaluationResult) -> dict[str, float]:
    return {
        "evaluation/episode_return_mean": result.mean,
        "evaluation/episode_return_std": result.std,
        "evaluation/episode_len_mean": float(result.lengths.mean()),
    }


def _summary(result: EvaluationResult) -> dict[str, Any]:
    return {
        "episode_return_mean": result.mean,
        "episode_return_std": result.std,
        "num_episodes": len(result.returns),
    }
