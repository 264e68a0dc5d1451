"""A process on the learner's GPU in which a language model acts for all rollout workers.

A GPU takes hardly longer for hundreds of prompts than for one. So the workers only write prompts
and step environments, and what they ask at the same time goes through the model together. They draw
the actions themselves, from what is answered.

The process may die at any time. Ray then starts it again and repeats what it was asked, and since
each request brings a reference to the weights, the new one answers as the old one would have.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from custom_models.observation_text import PADDING, Tokens
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.common.errors import TrainingFailedError
from rl_service.config.settings import Settings
from rl_service.rollout.starting import reason_of, start_timeout_s
from rl_service.runtime.process import prepare_process, spare_the_collector

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_GATHER_S = 0.01
"""How long a pass waits for the workers of the pass before to ask again."""

Answer = tuple[FloatArray, FloatArray | None]
"""`dist_inputs` (B, D), and hidden states (B, C) if the language model is frozen."""


class _Request(NamedTuple):
    tokens: Tokens
    version: int
    weights: list[ray.ObjectRef]
    answer: asyncio.Future[Answer]


class InferenceActor:
    """The Ray actor.

    Args:
        settings: of the run.
        observation_size: O.
        action_spec: the actions.
        visible_gpus: `CUDA_VISIBLE_DEVICES` of the learner; its first GPU is used. Ray would hide
            it, since this actor asks for none of its own.
    """

    def __init__(
        self,
        settings: Settings,
        observation_size: int,
        action_spec: ActionSpec,
        visible_gpus: str | None,
    ) -> None:
        os.environ.pop(_VISIBLE_GPUS, None)
        if visible_gpus is not None:
            os.environ[_VISIBLE_GPUS] = visible_gpus
        model, resources = settings.model, settings.resources
        prepare_process(resources.learner_threads)
        net = model.import_implementation()
        self._actor: Any = net.build_actor(model, observation_size, action_spec)
        self._actor.open_cache()
        if resources.learner_precision == "bfloat16":
            self._actor.autocast_dtype = torch.bfloat16
        self._actor.to("cuda" if resources.num_gpus else "cpu")
        self._version: int | None = None
        """Of the weights; None: of no version."""
        self._waiting: list[_Request] = []
        self._changed = asyncio.Event()
        self._last_size = 1
        self._worker: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1)
        spare_the_collector()

    async def process_id(self) -> int:
        return os.getpid()

    async def decide(self, tokens: Tokens, version: int, weights: list[ray.ObjectRef]) -> Answer:
        """What the policy of a version says to prompts.

        Args:
            tokens: (B, T) as `PromptActor.write` gives them.
            version: of the weights.
            weights: a reference to them, by name.
        """
        loop = asyncio.get_running_loop()
        request = _Request(tokens, version, weights, loop.create_future())
        self._waiting.append(request)
        self._changed.set()
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        return await request.answer

    async def _work(self) -> None:
        """Passes until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather(loop.time() + _GATHER_S)
            version = self._waiting[0].version
            batch = [each for each in self._waiting if each.version == version]
            self._waiting = [each for each in self._waiting if each.version != version]
            self._last_size = len(batch)
            try:
                if version != self._version:
                    self._version = None  # until all of them are there
                    self._actor.load_arrays(await batch[0].weights[0])
                    self._version = version
                answers = await loop.run_in_executor(self._executor, self._pass, batch)
            except Exception as error:
                for each in batch:
                    if not each.answer.cancelled():
                        each.answer.set_exception(error)
            else:
                for each, answer in zip(batch, answers, strict=True):
                    if not each.answer.cancelled():
                        each.answer.set_result(answer)
        self._worker = None

    async def _gather(self, deadline: float) -> None:
        """Waits until as many ask as in the last pass: two small passes take twice as long."""
        while len(self._waiting) < self._last_size:
            self._changed.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                return

    @torch.inference_mode()
    def _pass(self, batch: list[_Request]) -> list[Answer]:
        width = max(each.tokens.shape[1] for each in batch)
        padding = [((0, 0), (width - each.tokens.shape[1], 0)) for each in batch]
        rows = [
            np.pad(each.tokens, room, constant_values=PADDING)
            for each, room in zip(batch, padding, strict=True)
        ]
        inputs = self._actor.read(torch.from_numpy(np.concatenate(rows)))
        dist_inputs = self._actor(inputs).cpu().numpy()
        starts = np.cumsum([len(part) for part in rows])[:-1]
        answered = np.split(dist_inputs, starts)
        if not self._actor.is_frozen:
            return [(part, None) for part in answered]
        return list(zip(answered, np.split(inputs.cpu().numpy(), starts), strict=True))


class Inference:
    """The `InferenceActor` of a training, as its own process sees it.

    Args:
        settings: of the run.
        observation_size: O.
        action_spec: the actions.
    """

    def __init__(self, settings: Settings, observation_size: int, action_spec: ActionSpec) -> None:
        self.actor: ActorHandle | None = None
        """None: it is not started."""
        self._arguments = settings, observation_size, action_spec
        self._limit_s = start_timeout_s(settings.resources.lost_timeout_s)
        self._process_id: int | None = None

    def start(self) -> None:
        """Starts it unless it runs, beside this process, and waits until it is ready.

        Raises:
            TrainingFailedError: if it does not start.
        """
        if self.actor is not None:
            return
        here = str(ray.get_runtime_context().get_node_id())
        self.actor = ray.remote(
            num_cpus=0,  # it waits for the GPU
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )(InferenceActor).remote(*self._arguments, os.environ.get(_VISIBLE_GPUS))
        try:
            self._process_id = self._find_process(self.actor)
        except TrainingFailedError:
            self.stop()
            raise

    def look(self, tell: Callable[[str], None]) -> None:
        """Reports if it was lost and started again since the last call.

        Args:
            tell: receives a line.

        Raises:
            TrainingFailedError: if it does not start again, or was stopped meanwhile.
        """
        actor = self.actor
        if actor is None:
            raise TrainingFailedError("the process for the language model was stopped")
        found = self._find_process(actor)
        if found != self._process_id:
            self._process_id = found
            tell("the process of the language model was lost and has started again")

    def _find_process(self, actor: ActorHandle) -> int:
        """Its id, once it is ready; Ray starts a process again and again that dies in its start."""
        try:
            found: int = ray.get(actor.process_id.remote(), timeout=self._limit_s)
        except RayError as error:
            late = isinstance(error, GetTimeoutError)
            reason = f"it is not ready after {self._limit_s:g} s" if late else reason_of(error)
            raise TrainingFailedError(
                f"the process for the language model did not start: {reason}"
            ) from error
        return found

    def stop(self) -> None:
        """Ends it at once; it can be started again."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.actor = None
