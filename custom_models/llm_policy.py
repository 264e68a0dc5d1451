"""An actor that reads its observations as text: a causal language model and a head.

The last token's hidden state goes through two small layers to the action distribution, or each
discrete action's text is scored as a continuation of the prompt (TWOSOME, arXiv 2401.14151). What
the learner needs of a step is its *input*: the hidden state if the language model is frozen,
which then never runs in an update; otherwise the prompt's tokens.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from custom_models.configs import LLMPolicyConfig
from custom_models.distributions import MASKED
from custom_models.gpt2_critic import GPT2Critic
from custom_models.heads import GaussianHead, feed_forward, policy_head
from custom_models.history import History
from custom_models.interfaces import Actor, Critic
from custom_models.language_model import load_language_model
from custom_models.nets import ActorCritic, MLPCritic
from custom_models.observation_text import PADDING, PromptWriter
from custom_models.prompt_actor import PromptActor
from custom_models.spaces import ActionSpec

_MEAN_SCALE = 0.1
"""Scale of the initial weights of the Gaussian's mean."""
_TIMES_MORE_WITHOUT_GRADIENT = 4
"""Prompts that go through the model at once when nothing is kept, of those of a micro-batch."""


class LLMActor(PromptActor):
    """Histories -> inputs -> `dist_inputs` (B, num_dist_inputs).

    Raises:
        FileNotFoundError: if the language model is not there.
        ValueError: if its tokenizer cannot write numbers, or actions that are not numbers are to
            be scored by their text.
    """

    def __init__(
        self, config: LLMPolicyConfig, observation_size: int, action_spec: ActionSpec
    ) -> None:
        super().__init__(config, observation_size, action_spec)
        self.language_model: Any = load_language_model(config, self.vocabulary_size)
        self.repeats_its_work = self.is_frozen
        self._keeps_task = self.is_frozen
        """Whether what was read of the task still holds: it does until something learns."""
        self._task_cache: Any = None
        self._task_place: Any = None
        """Device and precision with which the task was read."""
        if config.action_scoring == "tokens":
            if isinstance(self.writer, PromptWriter):
                self._actions = _padded(self.writer.action_tokens)  # (A, L)
            return
        self.body = feed_forward(
            self.feature_size, config.hidden_sizes, config.activation, config.activate_last
        )
        features = config.hidden_sizes[-1] if config.hidden_sizes else self.feature_size
        self.head = policy_head(features, action_spec, config.log_std, config.log_std_init)
        if isinstance(self.head, GaussianHead):
            _start_as_the_seed(self.head.mean)

    def train(self, mode: bool = True) -> LLMActor:
        """The language model never uses dropout: a policy is one function."""
        super().train(mode)
        self.language_model.eval()
        return self

    def own_state(self) -> dict[str, Tensor]:
        """The weights that differ from the pretrained model, if there is one."""
        from_folder = self.config.pretrained is not None and not self.config.random_weights
        return self.trainable_state() if from_folder else super().own_state()

    def load(self, weights: dict[str, Tensor]) -> None:
        """Like that of every actor; a frozen model with random weights must be the same one.

        Raises:
            RuntimeError: if the weights are of another net, or the frozen ones of another release
                of torch or transformers: rollout workers, which are not sent them, would differ.
        """
        own = dict(self.named_parameters())
        for name, weight in weights.items():
            p = own.get(name)
            if p is not None and not p.requires_grad and not torch.equal(p.cpu(), weight.cpu()):
                raise RuntimeError(f"the frozen random weight {name} is another one here")
        super().load(weights)
        self._task_place = None

    def open_cache(self) -> None:
        """Reads the task once from here on, as long as nothing learns."""
        self._keeps_task, self._task_place = True, None

    @property
    def has_low_precision(self) -> bool:
        return self.autocast_dtype is not None and not self.is_frozen

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.language_model.get_input_embeddings().weight.device
        return device

    def encode(self, history: History) -> Tensor:
        """The inputs (B, num_inputs) of B steps: one batched call of a frozen language model."""
        return self.read(torch.from_numpy(self.write(history)))

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """The inputs (B, num_inputs) that prompts (B, T) are, as `write` gives them."""
        tokens = tokens.to(self._device)
        if not self.is_frozen:
            return tokens
        # Shared with other actors, possibly on another device.
        hidden = self._in_micro_batches(self.last_hidden, tokens)
        return hidden.to(next(self.head.parameters()).device)

    def forward(self, inputs: Tensor) -> Tensor:
        """`dist_inputs` of B steps from their inputs (B, num_inputs)."""
        if self.config.action_scoring == "tokens":
            return self._in_micro_batches(self._action_scores, inputs)
        features = inputs if self.is_frozen else self._in_micro_batches(self.last_hidden, inputs)
        dist_inputs: Tensor = self.head(self.body(features))
        return dist_inputs

    @torch.no_grad()
    def features(self, inputs: Tensor) -> Tensor:
        """The hidden states (B, C) of the inputs."""
        return inputs if self.is_frozen else self._in_micro_batches(self.last_hidden, inputs)

    def _in_micro_batches(self, read: Any, tokens: Tensor) -> Tensor:
        """Reads parts of the tokens, and keeps activations of one part at a time for a gradient."""
        there = (tokens != PADDING).any(0)
        tokens = tokens[:, int(there.int().argmax()) :]  # what is padding for all
        size, learns = self.config.micro_batch_size, torch.is_grad_enabled()
        parts = tokens.split(size if learns else _TIMES_MORE_WITHOUT_GRADIENT * size)
        if len(parts) == 1 or not learns:
            return torch.cat([read(part) for part in parts])
        return torch.cat([checkpoint(read, part, use_reentrant=False) for part in parts])

    def last_hidden(self, inputs: Tensor) -> Tensor:
        """Hidden states (B, C) of the last tokens of inputs' prompts (B, T)."""
        hidden: Tensor = self._read(self._apart(inputs)[0]).last_hidden_state[:, -1]
        return hidden.float()

    def _apart(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts (B, T) and what stands behind them."""
        prompts, behind = inputs.tensor_split([inputs.shape[1] - self.num_scored], dim=1)
        return prompts, behind

    def _read(self, tokens: Tensor, *, keep_cache: bool = False) -> Any:
        """Passes prompts (B, T) through the model, after the task that they share."""
        task = self.writer.task_tokens
        cache = self._task_read(tokens.device) if task else None
        if cache is not None:
            cache.batch_repeat_interleave(len(tokens))
        mask = tokens != PADDING
        if cache is not None:
            mask = torch.cat([mask.new_ones(len(mask), len(task)), mask], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        with self._precision():
            return self._trunk(
                input_ids=tokens.clamp(min=0).long(),
                attention_mask=mask.long(),
                position_ids=positions,
                cache=cache,
                use_cache=keep_cache or cache is not None,
            )

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, self.autocast_dtype)

    @property
    def _trunk(self) -> Any:
        """The model below its vocabulary."""
        causal = self.language_model
        if self.config.finetune == "lora":
            causal = causal.get_base_model()
        return causal.base_model

    def _task_read(self, device: torch.device) -> Any:
        """Keys and values of the task, for the caller to change; read once while nothing learns."""
        if not self.is_frozen and torch.is_grad_enabled():
            self._keeps_task = False
        if not self._keeps_task:
            return self._read_task(device)
        place = device, self.autocast_dtype
        if self._task_place != place:
            # Usable outside of inference mode, too.
            with torch.inference_mode(False), torch.no_grad():
                self._task_cache, self._task_place = self._read_task(device), place
        return copy.deepcopy(self._task_cache)

    def _read_task(self, device: torch.device) -> Any:
        with self._precision():
            tokens = torch.tensor([self.writer.task_tokens], device=device)
            return self._trunk(input_ids=tokens, use_cache=True).cache

    def _action_scores(self, inputs: Tensor) -> Tensor:
        """Log-probability (B, A) of the tokens of each action's text after the prompt.

        It is the mean over the tokens, or their sum; an action without tokens is `MASKED`. The
        prompt is read once; texts of several tokens continue from its keys and values.
        """
        tokens, behind = self._apart(inputs)
        if self.scored:
            actions = behind.unflatten(1, self.scored)  # (B, A, L)
        else:
            actions = self._actions.to(tokens.device).expand(len(tokens), -1, -1)
        lengths = (actions != PADDING).sum(2)  # (B, A)
        longer = (lengths > 1).any(0).nonzero().squeeze(1)  # (N,)
        read = self._read(tokens, keep_cache=len(longer) > 0)
        first = self._log_probs(read.last_hidden_state[:, -1])  # (B, vocabulary)
        scores = first.gather(1, actions[:, :, 0].clamp(min=0).long())
        if len(longer):
            # Not a selection, whose gradient would be added up row by row.
            read.cache.batch_repeat_interleave(len(longer))
            texts = actions[:, longer, : int(lengths.max())].flatten(0, 1)
            prompts = tokens.repeat_interleave(len(longer), dim=0)
            later = self._later_scores(prompts, texts, read.cache)
            scores = scores.index_add(1, longer, later.unflatten(0, (-1, len(longer))))
        if self.config.length_normalization:
            scores = scores / lengths.clamp(min=1)
        return scores.masked_fill(lengths == 0, MASKED)

    def _later_scores(self, tokens: Tensor, actions: Tensor, cache: Any) -> Tensor:
        """Summed log-probability (N,) of each text's tokens after its first, 0 if there are none.

        Args:
            tokens: (N, T) prompts.
            actions: (N, L) the text that follows each.
            cache: what the model has read of the prompts.
        """
        given, asked = actions[:, :-1], actions[:, 1:]  # (N, L-1)
        mask = F.pad(tokens != PADDING, (cache.get_seq_length() - tokens.shape[1], 0), value=True)
        positions = mask.sum(1, keepdim=True) + torch.arange(given.shape[1], device=mask.device)
        with self._precision():
            hidden = self._trunk(
                input_ids=given.clamp(min=0).long(),
                attention_mask=torch.cat([mask, given != PADDING], dim=1).long(),
                position_ids=positions,
                cache=cache,
                use_cache=True,
            ).last_hidden_state
        wanted = asked.clamp(min=0).long().unsqueeze(-1)  # (N, L-1, 1)
        found = self._log_probs(hidden).gather(-1, wanted).squeeze(-1)
        return found.masked_fill(asked == PADDING, 0.0).sum(1)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """Of the next token, (..., vocabulary)."""
        with self._precision():
            logits = self.language_model.get_output_embeddings()(hidden)
        return F.log_softmax(logits.float(), dim=-1)


def _padded(rows: list[list[int]]) -> Tensor:
    """(N, L) of rows, filled with `PADDING` on the right."""
    return nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=PADDING
    )


@torch.no_grad()
def _start_as_the_seed(mean: nn.Linear) -> None:
    bias = mean.bias.clone()
    mean.reset_parameters()
    mean.weight.mul_(_MEAN_SCALE)
    mean.bias.copy_(bias)


class LLMPolicy(ActorCritic):
    """The kind `llm_policy`: a language model as the actor, and one of three critics."""

    config: LLMPolicyConfig

    @classmethod
    def build_actor(
        cls, config: LLMPolicyConfig, observation_size: int, action_spec: ActionSpec
    ) -> Actor:
        return LLMActor(config, observation_size, action_spec)

    @classmethod
    def build_asking_actor(
        cls, config: LLMPolicyConfig, observation_size: int, action_spec: ActionSpec
    ) -> Actor:
        return PromptActor(config, observation_size, action_spec)

    @classmethod
    def build_critic(
        cls,
        config: LLMPolicyConfig,
        observation_size: int,
        action_spec: ActionSpec,
        feature_size: int,
    ) -> Critic:
        if config.critic == "gpt2":
            return GPT2Critic(config.gpt2_critic, observation_size, action_spec)
        num_inputs = feature_size if config.critic == "hidden_state" else observation_size
        return MLPCritic(num_inputs, config.critic_hidden_sizes, config.activation)

    @property
    def whole_config(self) -> LLMPolicyConfig:
        settings = self.config.gpt2_settings
        if settings is None or settings.pretrained is None:
            return self.config
        assert isinstance(self.critic, GPT2Critic)
        critic = settings.model_copy(update=self.critic.sizes_without_folder)
        return self.config.model_copy(update={"gpt2_critic": critic})
