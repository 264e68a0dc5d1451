"""Trains a policy: iterations, evaluations, checkpoints, the best policy, the record of it all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from rl_service.common.errors import EnvError, WorkersLostError
from rl_service.config.settings import CUT_REMEDY, Settings
from rl_service.policies.bundle import load_bundle
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.runtime.ray_session import ray_session
from rl_service.runtime.signals import StopRequest, interruptible
from rl_service.training.best_policy import BestPolicy, register_best
from rl_service.training.evaluation import EvaluationResult, evaluate
from rl_service.training.observer import TrainingObserver, TrainResult
from rl_service.training.run import Run
from rl_service.training.tracking import RunStatus, Tracker, build_trackers
from rl_service.training.trainer import Trainer, evaluation_row

_EVALUATED = "evaluation/episode_return_mean"


def train(settings: Settings, *, observer: TrainingObserver, run: Run) -> TrainResult:
    """Trains until a stop criterion is met or a signal asks to stop.

    Continues from the run's latest checkpoint if there is one.

    Before the first iteration a signal interrupts at once (`KeyboardInterrupt`): there is nothing
    to save yet. In an iteration it waits for its end, and in an evaluation it ends that: the
    iteration is saved before, and a resumed run evaluates it again. After the last one it ends the
    final evaluation alone; the run is finished.

    Args:
        settings: of the run; what a resumed run changes is written to its `config.yaml`.
        observer: informed of every step.
        run: the folder that receives everything.

    Raises:
        CheckpointError: if the run's checkpoints are damaged or do not fit the settings, or
            another process is at work on the run.
        EnvError: if the environment cannot be made.
        OutputError: if a file cannot be written; the last checkpoint stays whole.
        ResourceError: if Ray cannot be reached or has too few CPUs.
        TrainingFailedError: if training cannot continue.
        WorkersLostError: if no rollout worker is left; the state is saved.
    """
    with run.lock():
        run = run.with_settings(settings)
        checkpoint = run.checkpoints.latest()
        with ray_session(settings.resources, actor_module=settings.model.actor_module):
            trainer = Trainer(settings, observer.on_message)
            try:
                training = _Training(trainer, observer, run)
                if checkpoint is not None:
                    training.restore(checkpoint)
                return training.run_to_end()
            finally:
                trainer.close()


class _Training:
    """One run, from its first or resumed iteration to its result."""

    def __init__(self, trainer: Trainer, observer: TrainingObserver, run: Run) -> None:
        self.settings = trainer.settings
        self.trainer = trainer
        self.observer = observer
        self.run = run
        self.best = BestPolicy(run.bundle_path, run.run_id, trainer.algo)
        self.saved_at: int | None = None  # iteration of the newest checkpoint
        self.trackers: list[Tracker] = []
        self._owes_evaluation = False  # a signal has ended or prevented the last one
        self._told: set[str] = set()  # of episodes that evaluations have cut off

    def restore(self, checkpoint: Path) -> None:
        """Continues from a checkpoint."""
        self.trainer.restore(checkpoint)
        self.saved_at = self.trainer.iteration

    def run_to_end(self) -> TrainResult:
        # Also without a checkpoint: a run that was killed before its first one has rows.
        self.run.rewind_progress(self.trainer.iteration)
        self.trackers = build_trackers(self.run, self.settings, self.observer.on_message)
        self.observer.on_start(
            self.settings, self.run.path, self._total_iterations(), self.trainer.iteration
        )
        status: RunStatus = "failed"
        try:
            with StopRequest(self._tell_of_stop) as stop:
                self._iterate(stop)
            is_whole = self.trainer.is_done and not self._owes_evaluation
            ended: Literal["finished", "stopped"] = "finished" if is_whole else "stopped"
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

    def _tell_of_stop(self) -> None:
        self.observer.on_message(
            "stopping when this iteration is done and saved; Ctrl-C again ends the run at once"
        )

    def _iterate(self, stop: StopRequest) -> None:
        self._make_up_for_evaluation(stop)
        while not stop.requested and not self.trainer.is_done:
            row = self._iterate_once()
            self.observer.on_iteration(row)
            self.run.append_progress(row)
            self._track(row)
            if self._checkpoint_is_due:
                self._checkpoint()
            self._evaluate_if_due(stop)
        if self.saved_at != self.trainer.iteration:
            self._checkpoint()
        if self.trainer.iteration > 0:
            self.best.keep_any()

    def _iterate_once(self) -> dict[str, Any]:
        """One iteration; if all rollout workers are lost, what was reached is saved first."""
        try:
            return self.trainer.iterate()
        except WorkersLostError:
            if self.saved_at != self.trainer.iteration:
                self._checkpoint()
            raise

    @property
    def _checkpoint_is_due(self) -> bool:
        """Every n iterations, and before each evaluation: that may take long, or never end."""
        interval = self.settings.tracking.checkpoint_interval
        is_due = self.trainer.evaluation_is_due or self.trainer.iteration % interval == 0
        return is_due or self.saved_at is None

    def _track(self, row: dict[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.log(row, self.trainer.algo.env_steps)

    def _make_up_for_evaluation(self, stop: StopRequest) -> None:
        """Makes the evaluation before which, or in which, the run was stopped or killed."""
        rows = self.run.read_progress()
        if not rows or rows[-1]["training_iteration"] != self.trainer.iteration:
            return
        if self.trainer.evaluation_is_due and _EVALUATED not in rows[-1]:
            self._evaluate_if_due(stop)

    def _evaluate_if_due(self, stop: StopRequest) -> None:
        """Evaluates every n iterations and after the last; keeps the policy if it is the best."""
        if self.settings.evaluation.interval == 0:
            self.best.keep_if_better_in_training(self.trainer.progress.return_mean)
        self._owes_evaluation = self.trainer.evaluation_is_due
        if not self._owes_evaluation or stop.requested:
            return
        try:
            with stop.at_once():
                result = self.trainer.evaluate()
        except EnvError as error:
            self.observer.on_message(
                f"the evaluation at iteration {self.trainer.iteration} has no score, so its "
                f"policy is not kept: {error}"
            )
            self._owes_evaluation = False
            return
        except KeyboardInterrupt:
            self.observer.on_message("the evaluation was stopped; a resumed run repeats it")
            return
        self._owes_evaluation = False
        self._tell_of_cuts(result)
        self.best.keep_if_better(result)
        row = evaluation_row(result)
        self.run.complete_progress(row)  # from here on it is not made again
        self._track(row)
        self.observer.on_evaluation({"training_iteration": self.trainer.iteration, **row})

    def _tell_of_cuts(self, result: EvaluationResult) -> None:
        limit = self.settings.evaluation.max_episode_steps
        text = result.cut_off_text(limit, CUT_REMEDY)
        if text is not None and text not in self._told:
            self._told.add(text)
            self.observer.on_message(text)

    def _checkpoint(self) -> None:
        self.run.checkpoints.save(self.trainer.iteration, self.trainer.save)
        self.saved_at = self.trainer.iteration

    def _final_evaluation(self) -> EvaluationResult | None:
        """Plays the best policy's final episodes.

        None if there are none to play, or Ctrl-C or their environment ends them.
        """
        settings = self.settings.evaluation
        if settings.final_num_episodes == 0:
            return None
        try:
            with interruptible():
                result = evaluate(
                    load_bundle(self.run.bundle_path, self.settings.model.base_model),
                    self.settings.env,
                    num_episodes=settings.final_num_episodes,
                    seed=self.settings.seed,
                    max_episode_steps=settings.max_episode_steps,
                    on_message=self.observer.on_message,
                )
        except KeyboardInterrupt:
            self.observer.on_message("the final evaluation was interrupted; the run is finished")
            return None
        except EnvError as error:
            self.observer.on_message(f"the run is finished, without a final score: {error}")
            return None
        self._tell_of_cuts(result)
        return result

    def _register(self) -> PolicyVersion | None:
        """Puts the best policy into the registry and the trackers; None if it is not there."""
        if not self.best.exists:
            return None
        try:
            with interruptible():
                version = register_best(
                    self.run.bundle_path,
                    self.settings.model.base_model,
                    self.settings.tracking,
                    self.run.output_dir,
                    self.observer.on_message,
                )
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
        seconds = self.trainer.progress.time_total_s
        return TrainResult(
            env=self.settings.env.id,
            algo=self.settings.algorithm.name,
            model=self.settings.model.name,
            seed=self.settings.seed,
            episodes=0 if final is None else len(final.returns),
            episode_return_mean=None if final is None else _finite(final.mean),
            episode_return_std=None if final is None else _finite(final.std),
            env_steps=self.trainer.algo.env_steps,
            env_steps_per_s=self.trainer.algo.env_steps / seconds if seconds else 0.0,
            iterations=self.trainer.iteration,
            policy=str(self.run.bundle_path) if self.best.exists else None,
            registered=registered and f"{registered.name}:{registered.version}",
            run=str(self.run.path),
            status=status,
        )


def _finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None
