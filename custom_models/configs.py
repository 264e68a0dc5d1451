"""Strict configurations of the nets; no torch and no Ray, so that checking them is cheap.

Every field is bounded: a configuration may come from a stranger's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from custom_models.kinds import Kind, Kinds

if TYPE_CHECKING:
    from custom_models.spaces import ActionSpec

Layers = Annotated[int, Field(gt=0, le=48)]
Heads = Annotated[int, Field(gt=0, le=64)]
Width = Annotated[int, Field(gt=0, le=4096)]
ContextLength = Annotated[int, Field(gt=0, le=1024)]
HiddenSizes = Annotated[tuple[Width, ...], Field(max_length=16)]
ModelName = Annotated[str, Field(max_length=1000)]
_LARGEST_BASE_MODEL = 2**31
"""Weights of a base model that are put into a bundle, at most: 8 GiB."""
_LARGEST_VOCABULARY = 2**18


class ModelConfig(Kind):
    """What every kind of model has: the settings of a small actor, and what follows from them.

    A kind of your own derives from this class or from one below; its implementation derives from
    `custom_models.nets.ActorCritic`.
    """

    implementation: ClassVar[str] = "custom_models.nets:ActorCritic"
    learner_module: ClassVar[str] = "custom_models.nets"
    """What the learner imports while Ray starts; it may take seconds."""
    has_language_model: ClassVar[bool] = False
    """Whether the actor is a large net: it takes long to load, and acts on a GPU if there is
    one."""

    hidden_sizes: HiddenSizes = (64, 64)
    """Widths of the actor's hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the actor's hidden layers."""
    activate_last: bool = True
    """Whether an activation follows the last hidden layer. GPT2PPO's actor
    (`Linear -> ReLU -> Linear`, then the head) has none."""
    log_std: Literal["free", "state"] = "free"
    """Gaussian actors have one learned log standard deviation per action dimension (`free`), or
    one that depends on the observation (`state`). Ignored for discrete actions."""
    log_std_init: Annotated[float, Field(ge=-5.0, le=2.0)] = 0.0
    """Log standard deviation at the start."""

    @property
    def num_context_steps(self) -> int:
        """Earlier steps that the critic reads, or that the prompt at a fragment's end holds."""
        return 0

    @property
    def acting_context_length(self) -> int:
        """Observations that the actor reads, the current one included."""
        return 1

    @property
    def critic_reads_features(self) -> bool:
        """Whether the critic reads the actor's features in place of observations."""
        return False

    @property
    def base_model(self) -> str | None:
        """Base model that the actor's weights or tokenizer come from; None: all are built here."""
        return None

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        """Upper bound of the number of weights in actor and critic.

        Args:
            num_inputs: entries of an observation.
            num_outputs: outputs of the actor.
        """
        return _LARGEST_BASE_MODEL

    @property
    def gpt2_settings(self) -> GPT2CriticSettings | None:
        """Settings of the critic if it is a GPT-2; None if it is not."""
        return None

    def with_base_model(self, name: str) -> ModelConfig:
        """The same model, whose base model has another name or folder."""
        raise NotImplementedError

    def without_base_weights(self) -> ModelConfig:
        """The same model with random weights in place of those of its base model."""
        return self

    def weights_problems(self) -> list[str]:
        """Why the weights that the critic starts from cannot be used, one line each."""
        from custom_models.pretrained import gpt2_problems

        gpt2 = self.gpt2_settings
        where = "model" if isinstance(gpt2, ModelConfig) else "model.gpt2_critic"
        return [] if gpt2 is None else gpt2_problems(gpt2, where)

    def prompt_problems(self, observation_size: int, action_spec: ActionSpec) -> list[str]:
        """Why the actor cannot read an environment's observations, one line each."""
        return []


class MLPConfig(ModelConfig):
    """An MLP actor and an MLP critic that share no weights."""

    kind: ClassVar[str] = "mlp"
    implementation: ClassVar[str] = "custom_models.nets:MLP"

    critic_hidden_sizes: HiddenSizes = (64, 64)
    """Widths of the critic's hidden layers."""

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        actor = _feed_forward(num_inputs, self.hidden_sizes, num_outputs)
        return actor + _feed_forward(num_inputs, self.critic_hidden_sizes, 1)


class GPT2CriticSettings(BaseModel):
    """A GPT-2 that reads the last K steps and gives the value of the last.

    Defaults are Table I of the GPT2PPO paper, except `dropout` (the paper: 0.5).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    context_length: ContextLength = 64
    """K: steps that a value sees, its own included. A step is two tokens (state, action)."""
    attention: Literal["banded", "window"] = "banded"
    """`banded`: one causal pass in which a token looks back K steps per layer (fast).
    `window`: each value recomputes exactly its own K-step window (the paper's function)."""
    n_layer: Layers = 2
    """Layers of the GPT-2."""
    n_head: Heads = 8
    """Attention heads of each layer; must divide `n_embd`."""
    n_embd: Width = 64
    """Width of the GPT-2."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of embeddings, attention weights and residuals; off when values are computed."""
    n_positions: Annotated[int, Field(gt=0, le=2**14)] = 1024
    """Longest token sequence; 2 * `context_length` must fit."""
    max_timesteps: Annotated[int, Field(gt=0, le=2**17)] = 1024
    """Rows of the learned timestep embedding. Later steps of an episode share the last row, and
    the run reports that. 1: no timestep."""
    pretrained: ModelName | None = None
    """Folder with pretrained GPT-2 weights (Hugging Face format), or a name in the model store.
    `n_layer`, `n_head`, `n_embd` and `n_positions` then come from it. A bundle of the trained
    policy no longer needs the folder."""

    @model_validator(mode="after")
    def _check_arithmetic(self) -> Self:
        if self.pretrained is not None:
            return self
        problems = []
        if self.n_embd % self.n_head:
            problems.append(
                f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}; "
                f"each head needs n_embd / n_head whole numbers: use n_embd="
                f"{self.n_head * max(1, round(self.n_embd / self.n_head))} or another n_head"
            )
        if 2 * self.context_length > self.n_positions:
            problems.append(
                f"context_length={self.context_length} needs {2 * self.context_length} positions "
                f"(a state and an action token per step) but n_positions={self.n_positions}; "
                f"use context_length <= {self.n_positions // 2} or raise n_positions"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def num_context_steps(self) -> int:
        """Earlier steps that the critic reads before a fragment: K - 1."""
        return self.context_length - 1

    def max_critic_weights(self, num_inputs: int, num_outputs: int) -> int:
        """Like `max_weights`, for the critic alone."""
        if self.pretrained is not None:
            return _LARGEST_BASE_MODEL
        rows = self.max_timesteps + num_inputs + num_outputs + 8  # of embeddings, norms, head
        return _blocks(self.n_layer, self.n_embd) + rows * self.n_embd + 1


class GPT2CriticConfig(GPT2CriticSettings, ModelConfig):
    """A small feed-forward actor, and a GPT-2 as the critic."""

    kind: ClassVar[str] = "gpt2_critic"
    implementation: ClassVar[str] = "custom_models.nets:GPT2CriticNet"
    learner_module: ClassVar[str] = "custom_models.gpt2_critic"

    activation: Literal["tanh", "relu"] = "relu"
    activate_last: bool = False

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        actor = _feed_forward(num_inputs, self.hidden_sizes, num_outputs)
        return actor + self.max_critic_weights(num_inputs, num_outputs)

    @property
    def gpt2_settings(self) -> GPT2CriticSettings:
        return self


class LLMPolicyConfig(ModelConfig):
    """The actor is a causal language model that reads observations as text.

    `hidden_sizes` are those of the head on the last token's hidden state.
    """

    kind: ClassVar[str] = "llm_policy"
    implementation: ClassVar[str] = "custom_models.llm_policy:LLMPolicy"
    learner_module: ClassVar[str] = "custom_models.llm_policy"
    has_language_model: ClassVar[bool] = True

    critic: Literal["mlp", "gpt2", "hidden_state"] = "mlp"
    """`mlp`: an MLP on the observation. `gpt2`: a GPT-2 on the last steps. `hidden_state`: an MLP
    on the hidden state that the actor's head reads; its gradient stops before the language
    model."""
    critic_hidden_sizes: HiddenSizes = (64, 64)
    """Widths of the hidden layers of the critics `mlp` and `hidden_state`."""
    gpt2_critic: GPT2CriticSettings = GPT2CriticSettings()
    """Settings of the critic `gpt2`: those of the model `gpt2_critic` from `context_length` to
    `pretrained`, such as `{context_length: 32, n_layer: 1}`."""
    pretrained: ModelName | None = None
    """Folder of a causal language model (Hugging Face format), or the name of a fetched one
    (`rl-service models list`). None: a small GPT-2 of `n_layer`, `n_head` and `n_embd` with
    random weights."""
    random_weights: bool = False
    """Use the sizes and the tokenizer of `pretrained`, but random weights."""
    num_layers: Width | None = None
    """Keep only the first layers of `pretrained`. None: all."""
    tokenizer: ModelName | None = None
    """Folder or name of a tokenizer for a model without `pretrained`. None: one token per
    character."""
    n_layer: Layers = 2
    """Layers of a model without `pretrained`."""
    n_head: Heads = 4
    """Attention heads of a model without `pretrained`; must divide `n_embd`."""
    n_embd: Width = 64
    """Width of a model without `pretrained`."""
    context_length: ContextLength = 1
    """K: observations in the prompt, with the actions between them."""
    task: Annotated[str, Field(max_length=20_000)] = ""
    """Text at the start of each prompt, read once for a whole batch."""
    action_names: Annotated[
        tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=1000)
    ] = ()
    """Names of discrete actions in prompts. Empty: their numbers."""
    decimals: Annotated[int, Field(ge=0, le=4)] = 2
    """Decimals of each number in a prompt."""
    separator: Annotated[str, Field(min_length=1, max_length=10)] = " "
    """Text between the numbers of an observation."""
    finetune: Literal["head", "lora", "full"] = "head"
    """What learns: the head alone (`head`), also low-rank additions to the language model
    (`lora`, arXiv 2106.09685), or all of it (`full`)."""
    lora_rank: Width = 8
    """Rank of the additions."""
    lora_alpha: Width = 16
    """The additions are scaled by `lora_alpha` / `lora_rank`."""
    action_scoring: Literal["head", "tokens"] = "head"
    """`head`: a net on the last hidden state. `tokens`, for discrete actions: the mean
    log-probability of the tokens of each action's text after the prompt."""
    micro_batch_size: Width = 64
    """Prompts that go through the language model at once during learning. With more, activations
    are computed again for the gradient."""

    @model_validator(mode="after")
    def _check(self) -> LLMPolicyConfig:
        problems = []
        names = [name.strip() for name in self.action_names]
        if "" in names or len(set(names)) < len(names):
            problems.append(
                f"action_names={list(self.action_names)} has names that are empty or equal; give "
                f"each action its own name"
            )
        if self.critic != "gpt2" and self.gpt2_critic != GPT2CriticSettings():
            problems.append("gpt2_critic applies only to critic=gpt2; set that, or leave it out")
        if self.action_scoring == "tokens" and self.finetune == "head":
            problems.append(
                "action_scoring=tokens has no head, so with finetune=head nothing would learn; "
                "use finetune=lora or full"
            )
        if self.pretrained is None:
            given = [n for n in ("random_weights", "num_layers") if getattr(self, n)]
            problems += [f"{name} needs model.pretrained; set that, too" for name in given]
            if self.n_embd % self.n_head:
                problems.append(f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}")
        elif self.tokenizer is not None:
            problems.append("a model with pretrained weights has its own tokenizer; leave it out")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def num_context_steps(self) -> int:
        if self.critic == "gpt2":
            return self.gpt2_critic.num_context_steps
        return self.context_length - 1 if self.critic == "hidden_state" else 0

    @property
    def acting_context_length(self) -> int:
        return self.context_length

    @property
    def base_model(self) -> str | None:
        return self.pretrained or self.tokenizer

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        if self.pretrained is not None:
            return _LARGEST_BASE_MODEL
        width = self.n_embd
        rows = _LARGEST_VOCABULARY if self.tokenizer else 1024  # of the tokenizer built here
        lora = self.n_layer * self.lora_rank * 16 * width if self.finetune == "lora" else 0
        actor = _blocks(self.n_layer, width) + (rows + 1024 + 2) * width + lora
        critic = max(
            _feed_forward(max(num_inputs, width), self.critic_hidden_sizes, 1),
            self.gpt2_critic.max_critic_weights(num_inputs, num_outputs),
        )
        return actor + _feed_forward(width, self.hidden_sizes, num_outputs) + critic

    @property
    def gpt2_settings(self) -> GPT2CriticSettings | None:
        return self.gpt2_critic if self.critic == "gpt2" else None

    @property
    def critic_reads_features(self) -> bool:
        return self.critic == "hidden_state"

    def prompt_problems(self, observation_size: int, action_spec: ActionSpec) -> list[str]:
        from custom_models.pretrained import prompt_problems  # transformers takes seconds to import

        return prompt_problems(self, observation_size, action_spec)

    def without_base_weights(self) -> LLMPolicyConfig:
        if self.pretrained is None or self.random_weights:
            return self
        return self.model_copy(update={"random_weights": True})

    def with_base_model(self, name: str) -> LLMPolicyConfig:
        return self.model_copy(
            update={"tokenizer" if self.pretrained is None else "pretrained": name}
        )


def _feed_forward(num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int) -> int:
    """Weights and biases of a chain of linear layers."""
    return sum((a + 1) * b for a, b in pairwise((num_inputs, *hidden_sizes, num_outputs)))


def _blocks(num_layers: int, width: int) -> int:
    """Weights of the blocks of a GPT-2."""
    return num_layers * (12 * width + 13) * width


MODELS = Kinds("model", ModelConfig, MLPConfig, GPT2CriticConfig, LLMPolicyConfig)
"""What `model.name` accepts; each is a custom model of RLlib of the same name."""
ModelField = Annotated[SerializeAsAny[ModelConfig], MODELS.validator(trusted=True)]
"""A model in the settings of a run."""
StrangersModelField = Annotated[SerializeAsAny[ModelConfig], MODELS.validator(trusted=False)]
"""A model in a file that may be a stranger's, such as a bundle."""
