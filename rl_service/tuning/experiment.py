"""Runs a tuning experiment: trials through Ray Tune, then the best policy, then the report."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.tune_config import ResumeConfig

from rl_service.common.errors import RLServiceError, TuningError
from rl_service.common.text import one_line
from rl_service.runtime.machine import available_gpus
from rl_service.runtime.ray_session import ray_session
from rl_service.training.run import Run
from rl_service.tuning.best import BestOfTrials, keep_best
from rl_service.tuning.load import TuningPlan
from rl_service.tuning.observer import TrialView, TuneResult, TuningObserver
from rl_service.tuning.report import (
    PRESET_FILE,
    RESULTS_FILE,
    write_figures,
    write_preset,
    write_table,
)
from rl_service.tuning.resources import TrialResources, check_placement, check_shared
from rl_service.tuning.search import build_scheduler, search_arguments
from rl_service.tuning.settings import PBTSettings
from rl_service.tuning.snapshot import saved_trials
from rl_service.tuning.storage import ExperimentStorage
from rl_service.tuning.trackers import TrialTrackers, trial_folder
from rl_service.tuning.trial import TuningTrial
from rl_service.tuning.tune_process import Stopping, tune_environment
from rl_service.tuning.watch import Watch

REPORT_FOLDER = "report"
_STOPPING = "stopping when the trials are saved; Ctrl-C again ends the experiment at once"
_STORE = "AWS_"  # begins the names of the variables for s3://


def tune_experiment(
    plan: TuningPlan, storage: ExperimentStorage, observer: TuningObserver, *, resume: bool
) -> TuneResult:
    """Runs an experiment to its end, or until SIGINT or SIGTERM asks to stop.

    Args:
        plan: of the experiment.
        storage: its folder, which receives everything.
        observer: told of every step.
        resume: goes on with what is there: finished trials are left alone, others go on from
            their last checkpoints, failed ones are tried again.

    Raises:
        OutputError: if the storage cannot be written or is not shared by all nodes.
        ResourceError: if Ray cannot be reached or a trial cannot be placed.
        TuningError: if no trial left a policy.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(plan, storage))
        saved = saved_trials(storage) if resume else set()
        fitting = _connect(stack, plan, storage, leaves_nothing=not resume)
        max_concurrent = min(plan.tuning.max_concurrent or fitting, plan.tuning.num_samples)
        _announce(plan, storage, observer, max_concurrent, fitting)
        folder = stack.enter_context(storage.working_folder())
        trackers = TrialTrackers(
            plan.space,
            folder,
            # Files are told by where they are in the end.
            lambda text: observer.on_message(text.replace(str(folder), str(storage))),
        )
        stopping = Stopping(lambda: observer.on_message(_STOPPING))
        scheduler = build_scheduler(plan)
        watch = Watch(
            observer,
            trackers,
            plan.space,
            scheduler,
            saved,
            storage,
            lambda: stopping.requested,
        )
        with stopping:
            try:
                trials = _run_trials(plan, storage, watch, max_concurrent, bool(saved))
            finally:
                trackers.finish_all("stopped")
        views = [watch.view(trial) for trial in trials]
        if stopping.requested:
            result = _result(plan, storage, views, "stopped")
        else:
            result = _conclude(plan, storage, observer, trackers, trials, views)
    observer.on_finish(result, views)
    return result


def _connect(
    stack: contextlib.ExitStack,
    plan: TuningPlan,
    storage: ExperimentStorage,
    *,
    leaves_nothing: bool,
) -> int:
    """Connects to Ray until the stack closes; returns the trials that fit at a time.

    A new experiment that cannot run here leaves nothing behind.
    """
    try:
        stack.enter_context(ray_session(plan.base.resources, num_gpus=available_gpus()))
        fitting = check_placement(plan.space, plan.tuning.num_seeds)
        check_shared(storage)
    except RLServiceError:
        if leaves_nothing:
            storage.remove()
        raise
    return fitting


def _announce(
    plan: TuningPlan,
    storage: ExperimentStorage,
    observer: TuningObserver,
    max_concurrent: int,
    fitting: int,
) -> None:
    observer.on_start(plan, str(storage), max_concurrent)
    if max_concurrent > fitting:  # where nodes come by themselves, this is how to get them
        observer.on_message(
            f"{max_concurrent} trials at a time are asked for, and {fitting} fit on the nodes "
            f"that there are; the others wait for more nodes"
        )


def _run_trials(
    plan: TuningPlan,
    storage: ExperimentStorage,
    watch: Watch,
    max_concurrent: int,
    resume: bool,
) -> list[Trial]:
    trainable = tune.with_parameters(
        TuningTrial,
        space=plan.space,
        num_seeds=plan.tuning.num_seeds,
        store_variables=_store_variables(),
    )
    is_population = isinstance(plan.tuning.scheduler, PBTSettings)
    with tune_environment():
        analysis = tune.run(
            tune.with_resources(trainable, TrialResources(plan.space, plan.tuning.num_seeds)),
            **search_arguments(plan),
            **storage.tune_arguments(),
            scheduler=watch.scheduler,
            num_samples=plan.tuning.num_samples,
            max_concurrent_trials=None if is_population else max_concurrent,
            time_budget_s=plan.tuning.time_budget_s,
            max_failures=plan.tuning.max_failures,
            # A donor's checkpoint must outlive the trial's next one, until it has been taken over.
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=1, num_to_keep=4 if is_population else 2
            ),
            callbacks=[watch],
            trial_dirname_creator=_folder_name,
            resume_config=ResumeConfig(errored=ResumeConfig.ResumeType.RESUME) if resume else None,
            resume=True if resume else None,
            reuse_actors=True,
            raise_on_failed_trial=False,
            verbose=0,
        )
    trials: list[Trial] = analysis.trials
    return trials


def _store_variables() -> dict[str, str]:
    """What trials, on any node, need of our environment to reach an object store as we do.

    Tune would put some of it into their runtime environments, keys as well, and those can be read
    by all who may list the cluster's actors.
    """
    tune_s_own = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith(_STORE)}
    class_cache.ENV_VARS_TO_PROPAGATE.difference_update(tune_s_own)
    return {name: value for name, value in os.environ.items() if name.startswith(_STORE)}


def _folder_name(trial: Trial) -> str:
    return trial_folder(trial.trial_id)


def _locked(
    plan: TuningPlan, storage: ExperimentStorage
) -> contextlib.AbstractContextManager[None]:
    """Keeps other processes of this machine from working on the experiment."""
    folder = storage.local_path
    return contextlib.nullcontext() if folder is None else Run(folder, plan.base).lock()


def _conclude(
    plan: TuningPlan,
    storage: ExperimentStorage,
    observer: TuningObserver,
    trackers: TrialTrackers,
    trials: list[Trial],
    views: list[TrialView],
) -> TuneResult:
    """The table first, which says why there may be no policy; the figures last."""
    result = _result(plan, storage, views, "finished")
    with _report(storage) as folder:
        write_table(folder / RESULTS_FILE, plan, views)
    try:
        best = keep_best(plan, storage, trials, views, observer.on_message)
    except TuningError as error:
        table = f"{storage}/{REPORT_FOLDER}/{RESULTS_FILE}"
        raise TuningError(f"{error}; the table is {table}") from error
    with _report(storage) as folder:
        write_preset(folder / PRESET_FILE, best.settings, str(storage), best.trial)
    if best.registered is not None:
        trackers.keep_best(best.trial, best.bundle, best.registered)
    _draw(plan, storage, observer, views)
    return _with_best(result, best, f"{storage}/{REPORT_FOLDER}/{PRESET_FILE}")


@contextlib.contextmanager
def _report(storage: ExperimentStorage) -> Iterator[Path]:
    """A folder whose files go into the report if the block succeeds."""
    with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
        yield Path(folder)
        storage.put_folder(Path(folder), REPORT_FOLDER)


def _draw(
    plan: TuningPlan,
    storage: ExperimentStorage,
    observer: TuningObserver,
    views: list[TrialView],
) -> None:
    try:
        with _report(storage) as folder:
            for missing in write_figures(folder, plan, views):
                observer.on_message(missing)
    except Exception as error:  # of two drawing libraries; the result is worth more than a picture
        observer.on_message(f"no figures: {one_line(error)}; the table and the policy are there")


def _result(
    plan: TuningPlan, storage: ExperimentStorage, views: list[TrialView], status: Any
) -> TuneResult:
    steps = sum(view.env_steps or 0 for view in views) * plan.tuning.num_seeds
    return TuneResult(
        experiment=str(storage),
        status=status,
        trials=len(views),
        failed=sum(view.status == "failed" for view in views),
        env=plan.base.env.id,
        env_steps=steps,
    )


def _with_best(result: TuneResult, best: BestOfTrials, preset: str) -> TuneResult:
    played = best.evaluation
    return replace(
        result,
        algo=best.settings.algorithm.name,
        model=best.settings.model.name,
        seed=best.settings.seed,
        best_trial=best.trial.trial_id,
        best_values=best.trial.values,
        best_score=best.trial.best_score,
        episodes=0 if played is None else len(played.returns),
        episode_return_mean=None if played is None else played.mean,
        episode_return_std=None if played is None else played.std,
        policy=str(best.bundle),
        registered=best.registered and f"{best.registered.name}:{best.registered.version}",
        preset=preset,
    )
