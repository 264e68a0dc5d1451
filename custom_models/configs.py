"""The kinds of models and their settings; no torch and no Ray, so that checking them is cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from custom_models.kinds import Kinds
from custom_models.model_config import (
    LARGEST_BASE_MODEL,
    ContextLength,
    GPT2CriticSettings,
    Heads,
    HiddenSizes,
    Layers,
    ModelConfig,
    ModelName,
    SmallActorSettings,
    Width,
    num_block_weights,
    num_feed_forward_weights,
)

if TYPE_CHECKING:
    from custom_models.spaces import ActionSpec

_LARGEST_VOCABULARY = 2**18
_ONLY_FOR = {
    "numbers": ("decimals", "separator"),
    "text": ("chat_template", "max_prompt_tokens", "max_action_tokens"),
}
"""Settings of a prompt by the kind of observation."""


class MLPConfig(SmallActorSettings, ModelConfig):
    """An MLP actor and an MLP critic that share no weights."""

    kind: ClassVar[str] = "mlp"
    implementation: ClassVar[str] = "custom_models.nets:MLP"

    critic_hidden_sizes: HiddenSizes = (64, 64)
    """Widths of the critic's hidden layers."""

    @model_validator(mode="after")
    def _check_actions(self) -> MLPConfig:
        if self.history_actions and self.actor_net == "mlp":
            raise ValueError(
                "history_actions=true is for an actor that remembers; set actor_net=stack, too, or "
                "leave it out"
            )
        return self

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        actor_inputs = self.num_actor_inputs(num_inputs, num_outputs)
        actor = num_feed_forward_weights(actor_inputs, self.hidden_sizes, num_outputs)
        return actor + num_feed_forward_weights(num_inputs, self.critic_hidden_sizes, 1)


class GPT2CriticConfig(GPT2CriticSettings, SmallActorSettings, ModelConfig):
    """A small actor, and a GPT-2 as the critic."""

    kind: ClassVar[str] = "gpt2_critic"
    implementation: ClassVar[str] = "custom_models.nets:GPT2CriticNet"
    learner_module: ClassVar[str] = "custom_models.gpt2_critic"

    actor_net: Literal["mlp", "stack", "gpt2"] = "mlp"  # type: ignore[assignment]  # one more
    """`mlp` reads the current observation only. `stack` reads the last observations side by side,
    with zeros before the first one. Both are MLPs of `hidden_sizes`. `gpt2` reads them with a GPT-2
    of its own, of `n_layer`, `n_head` and `n_embd`, in one causal pass with relative time and no
    dropout."""
    activation: Literal["tanh", "relu"] = "relu"
    activate_last: bool = False

    @model_validator(mode="after")
    def _check_actor(self) -> GPT2CriticConfig:
        if self.actor_gpt2 is None:
            return self
        problems = self.actor_gpt2.size_problems()
        if self.pretrained is not None:
            problems.append(
                "an actor has no pretrained weights, and pretrained gives the critic sizes of its "
                "own; leave one of the two out"
            )
        if problems:
            raise ValueError(f"actor_net=gpt2: {'; '.join(problems)}")
        return self

    @property
    def actor_gpt2(self) -> GPT2CriticSettings | None:
        if self.actor_net != "gpt2":
            return None
        length = self.acting_context_length
        return GPT2CriticSettings.model_construct(
            context_length=length,
            history_actions=self.history_actions,
            n_layer=self.n_layer,
            n_head=self.n_head,
            n_embd=self.n_embd,
            n_positions=length * self.tokens_per_step,
        )

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        critic = self.max_critic_weights(num_inputs, num_outputs)
        if self.actor_gpt2 is not None:
            head = 2 * (self.n_embd + 1) * num_outputs
            return critic + head + self.actor_gpt2.max_critic_weights(num_inputs, num_outputs)
        actor_inputs = self.num_actor_inputs(num_inputs, num_outputs)
        return critic + num_feed_forward_weights(actor_inputs, self.hidden_sizes, num_outputs)

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
    observation: Literal["numbers", "text"] = "numbers"
    """What the prompt shows: numbers, or the text of an environment that gives one
    (`env.describe`)."""
    context_length: ContextLength = 1
    """K: observations in the prompt, with the actions between them."""
    task: Annotated[str, Field(max_length=20_000)] = ""
    """Text at the start of each prompt, read once for a whole batch."""
    chat_template: bool = True
    """For text: write prompts in the tokenizer's chat template, if it has one, with the task as the
    system message."""
    max_prompt_tokens: Annotated[int, Field(gt=0, le=2**15)] = 512
    """For text: tokens of a prompt after the task. A longer prompt ends the run."""
    max_action_tokens: Annotated[int, Field(gt=0, le=1024)] = 16
    """For text and `action_scoring: tokens`: tokens of an action's text. A longer one ends the
    run."""
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
    """`head`: a net on the last hidden state. `tokens`, for discrete actions: the log-probability
    of the tokens of each action's text after the prompt."""
    length_normalization: bool = True
    """For `action_scoring: tokens`: take the mean over the tokens of an action's text, not their
    sum."""
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
        if self.action_scoring == "head" and not self.length_normalization:
            problems.append(
                "length_normalization applies only to action_scoring=tokens; set that, or leave "
                "it out"
            )
        problems += self._observation_problems()
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

    def _observation_problems(self) -> list[str]:
        """What does not fit the kind of observation, one line each."""
        other = "text" if self.observation == "numbers" else "numbers"
        fields = type(self).model_fields
        problems = [
            f"{name} applies only to observation={other}; set that, or leave it out"
            for name in _ONLY_FOR[other]
            if getattr(self, name) != fields[name].default
        ]
        if self.observation == "text" and self.critic != "hidden_state":
            problems.append(
                f"critic={self.critic} reads numbers, and observation=text has none; use "
                f"critic=hidden_state"
            )
        return problems

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        gpt2 = values.get("gpt2_critic")
        if not isinstance(gpt2, dict):
            return values
        earlier = GPT2CriticSettings.upgraded(gpt2)
        if earlier is not gpt2 and values.get("critic") != "gpt2":
            earlier = {}  # the defaults of then, which nothing uses
        return {**values, "gpt2_critic": earlier}

    @property
    def num_context_steps(self) -> int:
        if self.critic == "gpt2":
            return self.gpt2_critic.num_context_steps
        return self.context_length - 1 if self.critic == "hidden_state" else 0

    @property
    def acting_context_length(self) -> int:
        return self.context_length

    @property
    def actor_module(self) -> str:
        return self.learner_module

    @property
    def base_model(self) -> str | None:
        return self.pretrained or self.tokenizer

    def max_weights(self, num_inputs: int, num_outputs: int) -> int:
        if self.pretrained is not None:
            return LARGEST_BASE_MODEL
        width = self.n_embd
        rows = _LARGEST_VOCABULARY if self.tokenizer else 1024  # of the tokenizer built here
        lora = self.n_layer * self.lora_rank * 16 * width if self.finetune == "lora" else 0
        actor = num_block_weights(self.n_layer, width) + (rows + 1024 + 2) * width + lora
        critic = max(
            num_feed_forward_weights(max(num_inputs, width), self.critic_hidden_sizes, 1),
            self.gpt2_critic.max_critic_weights(num_inputs, num_outputs),
        )
        return actor + num_feed_forward_weights(width, self.hidden_sizes, num_outputs) + critic

    @property
    def gpt2_settings(self) -> GPT2CriticSettings | None:
        return self.gpt2_critic if self.critic == "gpt2" else None

    @property
    def critic_reads_features(self) -> bool:
        return self.critic == "hidden_state"

    @property
    def reads_text(self) -> bool:
        return self.observation == "text"

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


MODELS = Kinds("model", ModelConfig, MLPConfig, GPT2CriticConfig, LLMPolicyConfig)
"""What `model.name` accepts; each is a custom model of RLlib of the same name."""
ModelField = Annotated[SerializeAsAny[ModelConfig], MODELS.validator(trusted=True)]
"""A model in the settings of a run."""
StrangersModelField = Annotated[SerializeAsAny[ModelConfig], MODELS.validator(trusted=False)]
"""A model in a file that may be a stranger's, such as a bundle."""
