"""Ray Tune around an experiment: its variables, signals and corrections, and our callback in it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError
from ray.tune import Callback
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from custom_models.text import one_line
from rl_service.common.errors import (
    EnvError,
    LearnerLostError,
    OutputError,
    SettingsError,
    TrainingFailedError,
    TuningError,
    WorkersLostError,
)
from rl_service.common.metrics import ENV_STEPS
from rl_service.common.storage import Storage
from rl_service.runtime.signals import StopRequest
from rl_service.tuning.observer import TrialTrackers, TuningObserver
from rl_service.tuning.plan import BEST_SCORE, ENDED, SCORE, SPEED
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.storage import back_up
from rl_service.tuning.trial_view import TrialView, trial_status

_SCHEDULER = "scheduler"
_SNAPSHOT_PERIOD_S = 5.0


@contextlib.contextmanager
def tune_environment() -> Iterator[None]:
    """Sets Tune's switches that are variables alone, corrects it, and silences false alarms."""
    wanted = {
        "RAY_AIR_NEW_OUTPUT": "0",  # else it draws its own table
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # result files for three viewers, of each trial
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # see `Stopping`
        "TUNE_GLOBAL_CHECKPOINT_S": f"{_SNAPSHOT_PERIOD_S:g}",
        # A snapshot with each checkpoint is what makes a kill cost little.
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: os.environ.get(name, value) for name, value in wanted.items()})
    try:
        with (
            warnings.catch_warnings(),
            _without_errors_of_its_end(),
            _replaced(Trial, "should_recover", _should_recover),
            _replaced(TuneController, "add_trial", _add_trial),
        ):
            # A trial that starts again from a checkpoint reports some steps a second time.
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


@contextlib.contextmanager
def _without_errors_of_its_end() -> Iterator[None]:
    """At its end Tune misses the result files that it was asked not to write."""
    log = logging.getLogger("ray.tune.analysis.experiment_analysis")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _replaced(owner: type, name: str, method: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, before)


_tunes_should_recover, _tunes_add_trial = Trial.should_recover, TuneController.add_trial


def _should_recover(trial: Trial) -> bool:
    """Lets a trial start again only if another try may end in another way.

    Tune tries again whatever an exception says, and asks this method alone.
    """
    return _tunes_should_recover(trial) and not will_recur(exception_of(trial))


def _add_trial(controller: TuneController, trial: Trial) -> None:
    """Stores a new trial where the experiment lies now.

    Tune's searchers remember where it began, and it may have been moved before it was resumed.
    """
    for name in ("storage_filesystem", "storage_fs_path", "experiment_dir_name"):
        setattr(trial.storage, name, getattr(controller._storage, name))
    _tunes_add_trial(controller, trial)


def will_recur(error: BaseException | None) -> bool:
    """Whether a trial that raised this does so again: its seeds and settings stay the same."""
    lasts = isinstance(error, SettingsError | EnvError | TrainingFailedError)
    return lasts and not isinstance(error, LearnerLostError | WorkersLostError)


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


class Stopping(StopRequest):
    """A request on which Tune saves and ends; puts back what Tune has changed, too."""

    def __enter__(self) -> Stopping:
        super().__enter__()
        if self._previous:  # Tune's own handler of it stays when Tune has ended
            self._previous[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
        return self


class TuneCallback(Callback):  # type: ignore[misc]
    """Reports every change to the observer.

    Ray Tune restores its searcher when an experiment is resumed, and not its scheduler; successive
    halving would then compare trials with those after the restart alone. A callback's state is
    kept, so the scheduler's rungs are stored with it.

    Args:
        observer: receives the changes.
        trackers: receive the numbers.
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
        storage: Storage,
        should_stop: Callable[[], bool],
    ) -> None:
        self._observer = observer
        self._trackers = trackers
        self._expected = frozenset(expected)
        self._storage = storage
        self._backed_up_at_s = time.monotonic()
        self._reported_copies = False
        self._should_stop = should_stop
        self._space = space
        self._cut: set[str] = set()
        self.scheduler = scheduler

    def view(self, trial: Trial) -> TrialView:
        """How a trial stands."""
        result = trial.last_result or {}
        return TrialView(
            trial_id=trial.trial_id,
            status=trial_status(trial.status, result, is_cut=trial.trial_id in self._cut),
            values=self._space.values(trial.config),
            env_steps=result.get(ENV_STEPS),
            score=result.get(SCORE),
            best_score=result.get(BEST_SCORE),
            env_steps_per_s=result.get(SPEED),
            time_s=result.get("time_total_s"),
            num_failures=trial.num_failures,
            error=_error(trial),
            seed_scores=list(result.get("seed_scores", [])),
            checkpoint=trial.checkpoint,
        )

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        """Tune looks after its trials again, many times a second."""
        lost = self._expected - {trial.trial_id for trial in trials}
        if lost:
            raise TuningError(
                f"trials {', '.join(sorted(lost))} could not be read back (see the experiment's "
                f"log.txt); was it started with another version of Ray?"
            )
        self._expected = frozenset()
        if time.monotonic() - self._backed_up_at_s > _SNAPSHOT_PERIOD_S:
            self._back_up()
            self._backed_up_at_s = time.monotonic()
        if self._should_stop():
            self._cut = {trial.trial_id for trial in trials if not trial.is_finished()}
            signal.raise_signal(signal.SIGUSR1)  # on which Tune saves and ends

    def _back_up(self) -> None:
        try:
            back_up(self._storage)
        except OutputError as error:  # Tune itself runs on without its snapshot, too
            if not self._reported_copies:
                self._observer.on_message(f"no copy of the snapshot for now: {error}")
            self._reported_copies = True

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial has a place."""
        self._report(trials)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        """A trial has a score."""
        self._trackers.log(self.view(trial), result)
        self._report(trials)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """A trial ended, by itself or early."""
        self._cut.discard(trial.trial_id)
        ended = (trial.last_result or {}).get(ENDED)
        self._trackers.finish(trial.trial_id, "finished" if ended else "stopped")
        self._report(trials)

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
        self._report(trials)
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

    def _report(self, trials: Sequence[Trial]) -> None:
        self._observer.on_trials([self.view(trial) for trial in trials])


def _error(trial: Trial) -> str | None:
    """Why a trial has failed for good."""
    return _words(trial, exception_of(trial)) if trial.status == Trial.ERROR else None


def _words(trial: Trial, error: BaseException | None) -> str:
    """The exception's own words: Ray's begin with pages of a remote stack."""
    text = str(error or trial.get_error() or "its process died").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)
