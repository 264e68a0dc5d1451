"""Passes on what Ray Tune says of its trials; keeps a scheduler's memory with the experiment."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from rl_service.common.errors import OutputError, TuningError
from rl_service.common.metrics import ENV_STEPS
from rl_service.common.text import one_line
from rl_service.tuning.observer import TrialStatus, TrialView, TuningObserver
from rl_service.tuning.settings import BEST_SCORE, ENDED, SCORE, SPEED
from rl_service.tuning.snapshot import back_up
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.storage import ExperimentStorage
from rl_service.tuning.trackers import TrialTrackers

_STATUS: dict[str, TrialStatus] = {
    Trial.PENDING: "waiting",
    Trial.RUNNING: "running",
    Trial.PAUSED: "paused",
    Trial.ERROR: "failed",
}
_SCHEDULER = "scheduler"
_BACKUP_PERIOD_S = 5.0


def view(trial: Trial, space: SearchSpace, *, goes_on: bool = False) -> TrialView:
    """How a trial of Ray Tune stands.

    Args:
        trial: the trial.
        space: of the experiment.
        goes_on: it was cut when the experiment was stopped, and goes on with it.
    """
    result = trial.last_result or {}
    return TrialView(
        trial_id=trial.trial_id,
        status=_status(trial.status, result, goes_on=goes_on),
        values=space.values(trial.config),
        env_steps=result.get(ENV_STEPS),
        score=result.get(SCORE),
        best_score=result.get(BEST_SCORE),
        env_steps_per_s=result.get(SPEED),
        time_s=result.get("time_total_s"),
        num_failures=trial.num_failures,
        error=_error(trial),
        seed_scores=list(result.get("seed_scores", [])),
    )


def _status(status: str, result: Mapping[str, Any], *, goes_on: bool) -> TrialStatus:
    """Tune ends all trials alike, those that are through and those that it was told to stop."""
    if status != Trial.TERMINATED:
        return _STATUS[status]
    if result.get(ENDED):
        return "finished"
    if goes_on:
        return "paused" if result else "waiting"
    return "stopped early"


def _error(trial: Trial) -> str | None:
    """Why a trial has failed for good."""
    return _words(trial, exception_of(trial)) if trial.status == Trial.ERROR else None


def _words(trial: Trial, error: BaseException | None) -> str:
    """The exception's own words: Ray's begin with pages of a remote stack."""
    text = str(error or trial.get_error() or "its process died").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)


def exception_of(trial: Trial) -> BaseException | None:
    """What the trial's process raised, or a RayActorError if it died; None if unreadable."""
    here = trial.pickled_error_file  # from which Tune copies it to the storage, after a while
    error: Any
    try:
        if here is not None and Path(here).exists():
            error = cloudpickle.loads(Path(here).read_bytes())
        else:
            error = trial.get_pickled_error()
    except Exception:  # an error that cannot be unpickled is one all the same
        return None
    while getattr(error, "cause", None) is not None:
        error = error.cause
    return error  # type: ignore[no-any-return]


class Watch(Callback):  # type: ignore[misc]
    """Tells the observer of every change.

    Ray Tune restores its searcher when an experiment goes on, and not its scheduler; successive
    halving would then compare trials with those after the restart alone. A callback's state is
    kept, so the scheduler's rungs go with it.

    Args:
        observer: who is told.
        trackers: who gets the numbers.
        space: of the experiment.
        scheduler: of the experiment.
        expected: ids of trials that must have come back.
        storage: of the experiment; its snapshots are copied.
        should_stop: whether the experiment is to be saved and ended.
    """

    def __init__(
        self,
        observer: TuningObserver,
        trackers: TrialTrackers,
        space: SearchSpace,
        scheduler: TrialScheduler,
        expected: Set[str],
        storage: ExperimentStorage,
        should_stop: Callable[[], bool],
    ) -> None:
        self._observer = observer
        self._trackers = trackers
        self._expected = frozenset(expected)
        self._storage = storage
        self._backed_up_at = time.monotonic()
        self._told_of_copies = False
        self._should_stop = should_stop
        self._space = space
        self._cut: set[str] = set()
        self.scheduler = scheduler

    def view(self, trial: Trial) -> TrialView:
        """How a trial stands."""
        return view(trial, self._space, goes_on=trial.trial_id in self._cut)

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Tune looks after its trials again, many times a second."""
        lost = self._expected - {trial.trial_id for trial in trials}
        if lost:
            raise TuningError(
                f"trials {', '.join(sorted(lost))} could not be read back (see the experiment's "
                f"log.txt); was it started with another version of Ray?"
            )
        self._expected = frozenset()
        if time.monotonic() - self._backed_up_at > _BACKUP_PERIOD_S:
            self._back_up()
            self._backed_up_at = time.monotonic()
        if self._should_stop():
            self._cut = {trial.trial_id for trial in trials if not trial.is_finished()}
            signal.raise_signal(signal.SIGUSR1)  # on which Tune saves and ends

    def _back_up(self) -> None:
        try:
            back_up(self._storage)
        except OutputError as error:  # Tune itself goes on without its snapshot, too
            if not self._told_of_copies:
                self._observer.on_message(f"no copy of the snapshot for now: {error}")
            self._told_of_copies = True

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial has a place."""
        self._tell(trials)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """A trial has a score."""
        self._trackers.log(self.view(trial), result)
        self._tell(trials)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """A trial ended, by itself or early."""
        self._cut.discard(trial.trial_id)
        ended = (trial.last_result or {}).get(ENDED)
        self._trackers.finish(trial.trial_id, "finished" if ended else "stopped")
        self._tell(trials)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial failed, or its process died, and it will start again."""
        error = exception_of(trial)
        died = isinstance(error, RayActorError) and not error.actor_init_failed
        what = "lost its process or node" if died else f"failed ({_words(trial, error)})"
        self._observer.on_message(
            f"trial {trial.trial_id} {what}; it starts again from its last checkpoint"
        )

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial failed for good."""
        self._trackers.finish(trial.trial_id, "failed")
        self._tell(trials)
        self._observer.on_message(f"trial {trial.trial_id} failed: {_error(trial)}")

    def get_state(self) -> dict[str, Any]:
        """The scheduler's memory, for the experiment's snapshot."""
        if not isinstance(self.scheduler, ASHAScheduler):  # the others' hold the trials themselves
            return {}
        with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
            path = Path(folder, _SCHEDULER)
            self.scheduler.save(str(path))
            return {_SCHEDULER: path.read_bytes()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Gives the scheduler its memory back."""
        if _SCHEDULER not in state:
            return
        with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
            path = Path(folder, _SCHEDULER)
            path.write_bytes(state[_SCHEDULER])
            self.scheduler.restore(str(path))

    def _tell(self, trials: Sequence[Trial]) -> None:
        self._observer.on_trials([self.view(trial) for trial in trials])
