"""More than one learner: actors that each hold a copy of the policy and learn with the training's.

The process of the training is learner 0. It builds each batch and sends it to the others, and all
take the same minibatches from it. Of each minibatch every learner computes the gradient of its part
of the rows, they add up their gradients (`Peers`), and each takes the same step. So all of them
stay equal, and N learners compute what one does.

If one dies, the others could wait for it for ever. So a thread watches the actors during an update:
it ends those that are left, and frees the process of the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from rl_service.algorithms.batch import LearnerBatch
from rl_service.algorithms.learner import Copy, Learner, Place
from rl_service.algorithms.minibatches import map_columns
from rl_service.algorithms.peers import ALONE, NETS, connect, open_store
from rl_service.algorithms.policy import ActorCriticPolicy
from rl_service.algorithms.sampling import Background
from rl_service.algorithms.state import to_bytes
from rl_service.common.errors import LearnerLostError, TrainingFailedError
from rl_service.rollout.starting import reason_of, start_timeout_s
from rl_service.runtime.machine import LOOPBACK
from rl_service.runtime.process import TorchRandomState

_LOOK_S = 1.0
_LONG_START_S = 30.0
_CAUSE_S = 30.0  # so long after the first sign of it Ray may say what happened


class Learners:
    """The further learners of a training: none, unless `resources.num_learners` asks for them.

    Args:
        policy: of learner 0.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.on_message: Callable[[str], None] = lambda _: None
        """Receives lines for the user."""
        self.random_states: list[TorchRandomState] = []
        """Of the further learners after the last batch, for a checkpoint."""
        self._policy = policy
        self._resources = policy.settings.resources
        self._actors: dict[ActorHandle, int] = {}
        """The learners, with their ranks."""
        self._holders: list[ActorHandle] = []
        """Actors that do nothing but keep the GPU of this process from others."""
        self._store: Any = None
        self._failure: TrainingFailedError | None = None
        self._lost_at: float | None = None
        """When the first connection broke."""

    def start(self) -> None:
        """Starts them unless they run, as copies of the policy as it is now.

        Raises:
            TrainingFailedError: if one of them fails while it starts, or finds no room.
        """
        if self._actors or self._resources.num_learners == 1:
            return
        own = Place.of(self._policy.device)
        self._failure = self._lost_at = None
        try:
            places = self._find_places(own)
            self._build()
            self._connect(places, own)
        except BaseException:
            self.stop()
            raise

    def _build(self) -> None:
        policy = self._policy
        state = to_bytes(policy.get_learner_state())
        spaces = policy.observation_space, policy.action_space
        copy = ray.put(Copy(type(policy), *spaces, policy.config, state))
        states = dict(enumerate(self.random_states, start=1))
        actors = self._actors.items()
        self._answers({actor.build.remote(copy, states.get(rank)): rank for actor, rank in actors})

    def _connect(self, places: Mapping[ActorHandle, Place], own: Place) -> None:
        """Lets all learners find each other."""
        is_local = all(place.node_id == own.node_id for place in places.values())
        host = LOOPBACK if is_local else own.host
        self._store, port = open_store(host)
        joining = {
            actor.join.remote(host if is_local else places[actor].host, (host, port)): rank
            for actor, rank in self._actors.items()
        }
        store, size, device = self._store, self._resources.num_learners, self._policy.device
        connecting = Background(lambda: connect(store, 0, size, host, device))
        self._answers(joining)  # it raises at once if one of them is lost
        self._policy.join(connecting.result())

    def _find_places(self, own: Place) -> dict[ActorHandle, Place]:
        """Asks Ray for the actors, and for one more if one was given the GPU of this process.

        Ray does not know of that GPU unless this process is itself an actor or a job that has asked
        for it.
        """
        places: dict[ActorHandle, Place] = {}
        missing = set(range(1, self._resources.num_learners))
        while missing:
            asked = {self._spawn(rank).place.remote(): rank for rank in missing}
            found = self._answers(asked)
            for actor, rank in list(self._actors.items()):
                if rank not in missing:
                    continue
                if own.gpu is not None and found[rank].gpu == own.gpu:
                    self._holders.append(actor)
                    del self._actors[actor]
                else:
                    places[actor] = found[rank]
                    missing.remove(rank)
        return places

    def _spawn(self, rank: int) -> ActorHandle:
        actor_class = ray.remote(
            num_cpus=1, num_gpus=1 if self._resources.num_gpus else 0, max_restarts=0
        )(Learner)
        actor = actor_class.remote(rank, self._policy.settings)
        self._actors[actor] = rank
        return actor

    def _answers(self, asked: Mapping[ray.ObjectRef, int]) -> dict[int, Any]:
        """What starting learners answer, by their ranks."""
        started, answers = time.monotonic(), dict[int, Any]()
        limit_s, reminded = start_timeout_s(self._resources.lost_timeout_s), False
        for done, waiting in _looks(asked):
            for rank, ref in done.items():
                try:
                    answers[rank] = ray.get(ref)
                except RayError as error:
                    failure = TrainingFailedError if _has_raised(error) else LearnerLostError
                    raise failure(f"learner {rank} did not start: {reason_of(error)}") from error
            waited_s = time.monotonic() - started
            ranks = " and ".join(map(str, waiting))
            if waiting and waited_s > limit_s:
                raise TrainingFailedError(
                    f"learner {ranks} did not start in {waited_s:.0f} s: make room on the cluster, "
                    f"lower resources.num_learners, or look for the reason in the log"
                )
            if waiting and waited_s > _LONG_START_S and not reminded:
                reminded = True
                self.on_message(f"learner {ranks} is not ready after {waited_s:.0f} s; waiting")
        return answers

    @contextmanager
    def learning(self, batch: LearnerBatch) -> Iterator[None]:
        """Lets the further learners learn from a batch while this process does so in the block.

        Raises:
            LearnerLostError: if one of them dies.
            TrainingFailedError: if one of them raises.
        """
        if not self._actors:
            yield
            return
        # Once in the object store for all of them.
        arrays = ray.put(map_columns(batch, lambda column: column.cpu().numpy()))
        timestep = self._policy.global_timestep
        asked = {actor.learn.remote(arrays, timestep): rank for actor, rank in self._actors.items()}
        watch = Background(lambda: self._watch(asked))
        try:
            yield
        except Exception as error:
            if isinstance(error, LearnerLostError):
                self._lost_at = time.monotonic()
                watch.wait()
            if self._failure is not None:
                raise self._failure from error
            raise
        answers = watch.result()
        self.random_states = [answers[rank] for rank in sorted(answers)]

    def _watch(self, asked: Mapping[ray.ObjectRef, int]) -> dict[int, TorchRandomState]:
        """Waits for all answers; if a learner is lost, ends the others and frees this process.

        A learner whose connection broke is not the cause, so the search for that goes on.
        """
        answers: dict[int, TorchRandomState] = {}
        for done, _ in _looks(asked):
            for rank, ref in done.items():
                try:
                    answers[rank] = ray.get(ref)
                except RayError as error:
                    if isinstance(getattr(error, "cause", None), LearnerLostError):
                        self._lost_at = self._lost_at or time.monotonic()
                    else:
                        raise self._fail(_lost(rank, error)) from error
            if self._lost_at is not None and time.monotonic() - self._lost_at > _CAUSE_S:
                break
        if self._lost_at is not None:
            raise self._fail(
                LearnerLostError(
                    "the connection between the learners broke; look for the reason in the log, "
                    "then continue from the last checkpoint with --resume"
                )
            )
        return answers

    def _fail(self, failure: TrainingFailedError) -> TrainingFailedError:
        self._failure = failure
        self._kill(self._actors)
        for name in NETS:
            self._policy.peers[name].give_up()
        return failure

    def restore(self, random_states: Iterable[TorchRandomState]) -> None:
        """Continues from the random states of a checkpoint, and the policy as it then is."""
        self.stop()
        self.random_states = list(random_states)

    def stop(self) -> None:
        """Ends them at once; they can be started again."""
        self._kill([*self._actors, *self._holders])
        self._actors, self._holders, self._store = {}, [], None
        self._policy.join(dict.fromkeys(NETS, ALONE))

    @staticmethod
    def _kill(actors: Iterable[ActorHandle]) -> None:
        for actor in actors:
            ray.kill(actor)


def _looks(
    asked: Mapping[ray.ObjectRef, int],
) -> Iterator[tuple[dict[int, ray.ObjectRef], list[int]]]:
    """Until all have answered: the answers since the last look by rank, and who is missing."""
    waiting = list(asked)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=_LOOK_S)
        yield {asked[ref]: ref for ref in done}, [asked[ref] for ref in waiting]


def _lost(rank: int, error: RayError) -> TrainingFailedError:
    is_silent = isinstance(error, ActorUnavailableError)  # Ray does not know yet why
    reason = "it cannot be reached" if is_silent else reason_of(error)
    if _has_raised(error):
        return TrainingFailedError(
            f"learner {rank} failed: {reason}; look for its traceback in the log, then continue "
            f"from the last checkpoint with --resume"
        )
    return LearnerLostError(
        f"learner {rank} is lost ({reason}); continue from the last checkpoint with --resume"
    )


def _has_raised(error: RayError) -> bool:
    """Whether the learner's code failed, rather than its process or node."""
    return isinstance(error, RayTaskError) or bool(getattr(error, "actor_init_failed", False))
