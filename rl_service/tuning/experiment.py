"""Runs a tuning experiment: trials through Ray Tune, then the best policy, then the report."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.tune_config import ResumeConfig

from custom_models.text import one_line
from rl_service.common.errors import RLServiceError, TuningError
from rl_service.common.storage import Storage
from rl_service.runtime.machine import available_gpus
from rl_service.runtime.ray_session import ray_session
from rl_service.training.run import Run
from rl_service.tuning.observer import TrialTrackers, TuneResult, TuningObserver
from rl_service.tuning.outcome import (
    PRESET_FILE,
    RESULTS_FILE,
    BestOfTrials,
    best_preset,
    draw_figures,
    keep_best,
    results_table,
)
from rl_service.tuning.plan import PBTSettings, TuningPlan
from rl_service.tuning.ray_tune import Stopping, TuneCallback, tune_environment
from rl_service.tuning.resources import check_placement, check_shared, trial_resources
from rl_service.tuning.search import build_scheduler, search_arguments
from rl_service.tuning.storage import saved_trials, tune_arguments, working_folder
from rl_service.tuning.trial import TuningTrial
from rl_service.tuning.trial_view import TrialView, trial_folder

REPORT_FOLDER = "report"
_STOPPING = "stopping when the trials are saved; Ctrl-C again ends the experiment at once"
_STORE = "AWS_"  # begins the names of the variables for s3://


def tune_experiment(
    plan: TuningPlan, storage: Storage, observer: TuningObserver, *, resume: bool
) -> TuneResult:
    """Runs an experiment to its end, or until SIGINT or SIGTERM asks to stop.

    Args:
        plan: of the experiment.
        storage: its folder, which receives everything.
        observer: receives every step.
        resume: continues what is there: finished trials are left alone, others continue from
            their last checkpoints, failed ones are tried again.

    Raises:
        OutputError: if the storage cannot be written or is not shared by all nodes.
        ResourceError: if Ray cannot be reached or a trial cannot be placed.
        TuningError: if no trial left a policy.
    """
    with contextlib.ExitStack() as stack:
        if storage.local_path is not None:  # keeps other processes of this machine away
            stack.enter_context(Run(storage.local_path, plan.base).lock())
        saved = saved_trials(storage) if resume else set()
        fitting = _connect(stack, plan, storage, leaves_nothing=not resume)
        max_concurrent = min(plan.tuning.max_concurrent or fitting, plan.tuning.num_samples)
        observer.on_start(plan, str(storage), max_concurrent)
        if max_concurrent > fitting:  # where nodes come by themselves, this is how to get them
            observer.on_message(
                f"{max_concurrent} trials at a time are asked for, and {fitting} fit on the "
                f"present nodes; the others wait for more nodes"
            )
        folder = stack.enter_context(working_folder(storage))
        trackers = TrialTrackers(
            plan.space,
            folder,
            # Files are named by where they are in the end.
            lambda text: observer.on_message(text.replace(str(folder), str(storage))),
        )
        stopping = Stopping(lambda: observer.on_message(_STOPPING))
        callback = TuneCallback(
            observer,
            trackers,
            plan.space,
            build_scheduler(plan),
            saved,
            storage,
            lambda: stopping.requested,
        )
        with stopping:
            try:
                trials = _run_trials(plan, storage, callback, max_concurrent, bool(saved))
            finally:
                trackers.finish_all("stopped")
        views = [callback.view(trial) for trial in trials]
        result = TuneResult(
            experiment=str(storage),
            status="stopped" if stopping.requested else "finished",
            trials=len(views),
            failed=sum(view.status == "failed" for view in views),
            env=plan.base.env.id,
            env_steps=sum(view.env_steps or 0 for view in views) * plan.tuning.num_seeds,
        )
        if not stopping.requested:
            best = _conclude(plan, storage, observer, trackers, views)
            result = _with_best(result, best, f"{storage}/{REPORT_FOLDER}/{PRESET_FILE}")
    observer.on_finish(result, views)
    return result


def _connect(
    stack: contextlib.ExitStack,
    plan: TuningPlan,
    storage: Storage,
    *,
    leaves_nothing: bool,
) -> int:
    """Connects to Ray until the stack closes; returns the trials that fit at a time.

    A new experiment that cannot run here leaves nothing behind.
    """
    try:
        resources, actor = plan.base.resources, plan.base.model.actor_module
        stack.enter_context(ray_session(resources, actor_module=actor, num_gpus=available_gpus()))
        fitting = check_placement(plan.space, plan.tuning.num_seeds)
        check_shared(storage)
    except RLServiceError:
        if leaves_nothing:
            storage.remove()
        raise
    return fitting


def _run_trials(
    plan: TuningPlan,
    storage: Storage,
    callback: TuneCallback,
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
            tune.with_resources(
                trainable, partial(trial_resources, plan.space, plan.tuning.num_seeds)
            ),
            **search_arguments(plan),
            **tune_arguments(storage),
            scheduler=callback.scheduler,
            num_samples=plan.tuning.num_samples,
            max_concurrent_trials=None if is_population else max_concurrent,
            time_budget_s=plan.tuning.time_budget_s,
            max_failures=plan.tuning.max_failures,
            # A donor's checkpoint must outlive the trial's next one, until it has been taken over.
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=1, num_to_keep=4 if is_population else 2
            ),
            callbacks=[callback],
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
    return trial_folder(trial.trial_id)  # Tune's snapshots refer to this function by its name


def _conclude(
    plan: TuningPlan,
    storage: Storage,
    observer: TuningObserver,
    trackers: TrialTrackers,
    views: list[TrialView],
) -> BestOfTrials:
    """The table first, which says why there may be no policy; the figures last."""
    table = f"{REPORT_FOLDER}/{RESULTS_FILE}"
    storage.write(table, results_table(plan, views).encode())
    try:
        best = keep_best(plan, storage, views, observer.on_message)
    except TuningError as error:
        raise TuningError(f"{error}; the table is {storage}/{table}") from error
    preset = best_preset(best.settings, str(storage), best.trial)
    storage.write(f"{REPORT_FOLDER}/{PRESET_FILE}", preset.encode())
    if best.registered is not None:
        trackers.keep_best(best.trial, best.bundle, best.registered)
    try:
        for name, content in draw_figures(plan, views).items():
            storage.write(f"{REPORT_FOLDER}/{name}", content)
    except Exception as error:  # of two drawing libraries; the result is worth more than a picture
        observer.on_message(f"no figures: {one_line(error)}; the table and the policy are there")
    return best


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
