"""What every model's settings have, and those of the GPT-2 critic; no torch and no Ray.

Every field is bounded: a configuration may come from a stranger's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from custom_models.kinds import Group, Kind

if TYPE_CHECKING:
    from custom_models.spaces import ActionSpec

Layers = Annotated[int, Field(gt=0, le=48)]
Heads = Annotated[int, Field(gt=0, le=64)]
Width = Annotated[int, Field(gt=0, le=4096)]
ContextLength = Annotated[int, Field(gt=0, le=1024)]
HiddenSizes = Annotated[tuple[Width, ...], Field(max_length=16)]
ModelName = Annotated[str, Field(max_length=1000)]
LARGEST_BASE_MODEL = 2**31
"""Weights of a base model that are put into a bundle, at most: 8 GiB."""


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
    def acts_on_past_actions(self) -> bool:
        """Whether the actor also reads the actions between those observations."""
        return False

    @property
    def actor_gpt2(self) -> GPT2CriticSettings | None:
        """Settings of the actor if it is a GPT-2 that an update runs over sequences."""
        return None

    @property
    def actor_module(self) -> str:
        """What rollout workers import to build the actor; it may take seconds."""
        return "custom_models.nets" if self.actor_gpt2 is None else "custom_models.gpt2_actor"

    @property
    def num_shipped_steps(self) -> int:
        """Earlier steps that come with a fragment, for whichever net needs more."""
        acting = 0 if self.actor_gpt2 is None else self.acting_context_length - 1
        return max(self.num_context_steps, acting)

    @property
    def critic_reads_features(self) -> bool:
        """Whether the critic reads the actor's features in place of observations."""
        return False

    @property
    def reads_text(self) -> bool:
        """Whether observations are rows of text (`custom_models.text_rows`)."""
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
        return LARGEST_BASE_MODEL

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


class SmallActorSettings(Group):
    """A small actor, which may remember."""

    actor_net: Literal["mlp", "stack"] = "mlp"
    """`mlp` reads the current observation only. `stack` reads the last observations side by side,
    with zeros before the first one. Both are MLPs of `hidden_sizes`."""
    actor_context_length: Annotated[int, Field(gt=1, le=1024)] | None = None
    """Observations that an actor that remembers reads, the current one included. None: 8."""
    history_actions: bool = False
    """Whether an actor that remembers also reads the actions between those observations."""

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if self.actor_net == "mlp" and self.actor_context_length is not None:
            raise ValueError(
                f"actor_context_length={self.actor_context_length} is for an actor that remembers; "
                f"set actor_net=stack, too, or leave it out"
            )
        return self

    @property
    def acts_on_past_actions(self) -> bool:
        """Whether the actor also reads the actions between those observations."""
        return self.history_actions

    @property
    def acting_context_length(self) -> int:
        """Observations that the actor reads, the current one included."""
        return 1 if self.actor_net == "mlp" else self.actor_context_length or 8

    def num_actor_inputs(self, num_inputs: int, num_outputs: int) -> int:
        """Upper bound of the numbers that the actor reads at a step.

        Args:
            num_inputs: entries of an observation.
            num_outputs: outputs of the actor, at least as many as an action has numbers.
        """
        earlier = self.acting_context_length - 1
        return num_inputs + earlier * (num_inputs + num_outputs)


_EARLIER = {"context_length", "attention", "n_layer", "max_timesteps", "pretrained"}
"""Some keys of a GPT-2 critic that every resolved file of an earlier release has."""


class GPT2CriticSettings(Group):
    """A GPT-2 that reads the last K steps and gives the value of the last.

    The defaults are those that learned best (docs/gpt2_critic.md); the paper's are in its presets.
    """

    context_length: ContextLength = 8
    """K: steps that a value sees, its own included."""
    attention: Literal["banded", "window", "approximate"] = "banded"
    """`banded`: one causal pass, whose layers together look back K steps (fast). `window`: each
    value recomputes its own K-step window, all of which each layer sees (the paper's function).
    `approximate`: one causal pass, each layer of which looks back K steps, so that a value also
    depends on earlier steps of its chunk (a fast approximation of `window`). With one layer, all
    three are the same."""
    time: Literal["relative", "none", "absolute"] = "relative"
    """`relative`: attention knows how many steps ago a step was. `none`: it does not know their
    order. `absolute`: a learned embedding of the time since the reset (the paper's)."""
    max_timesteps: Annotated[int, Field(gt=0, le=2**17)] | None = None
    """Rows of the embedding of `time: absolute`. Later steps of an episode share the last row,
    and the run reports that. None: 1024."""
    history_actions: bool = False
    """Whether the history holds the actions (the paper's does): to the critic, a step is then two
    tokens instead of one. An actor that remembers reads the same."""
    n_layer: Layers = 1
    """Layers of the GPT-2."""
    n_head: Heads = 8
    """Attention heads of each layer; must divide `n_embd`."""
    n_embd: Width = 64
    """Width of the GPT-2."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of embeddings, attention weights and residuals; off when values are computed."""
    n_positions: Annotated[int, Field(gt=0, le=2**14)] = 1024
    """Longest token sequence; the tokens of `context_length` steps must fit."""
    pretrained: ModelName | None = None
    """Folder with pretrained GPT-2 weights (Hugging Face format), or a name in the model store.
    `n_layer`, `n_head`, `n_embd` and `n_positions` then come from it. A bundle of the trained
    policy no longer needs the folder."""

    @model_validator(mode="after")
    def _check_arithmetic(self) -> Self:
        problems = []
        if self.max_timesteps is not None and self.time != "absolute":
            problems.append(
                f"max_timesteps={self.max_timesteps} applies only to time=absolute; set that, too, "
                f"or leave it out"
            )
        if self.pretrained is None:
            problems += self.size_problems()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def size_problems(self) -> list[str]:
        """Which sizes of a GPT-2 that is built here do not fit each other."""
        problems = []
        if self.n_embd % self.n_head:
            problems.append(
                f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}; "
                f"each head needs n_embd / n_head whole numbers: use n_embd="
                f"{self.n_head * max(1, round(self.n_embd / self.n_head))} or another n_head"
            )
        elif self.time == "relative" and self.n_embd // self.n_head % 2:
            problems.append(
                f"time=relative turns pairs of a head's numbers, and n_embd / n_head = "
                f"{self.n_embd // self.n_head} is odd; use n_embd={2 * self.n_embd}"
            )
        if self.num_tokens > self.n_positions:
            problems.append(
                f"context_length={self.context_length} needs {self.num_tokens} positions "
                f"({self.tokens_per_step} for each step) but n_positions={self.n_positions}; use "
                f"context_length <= {self.n_positions // self.tokens_per_step} or raise n_positions"
            )
        return problems

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Earlier releases wrote all settings but `time`, and `banded` for `approximate`."""
        if "time" in values or not values.keys() >= _EARLIER:
            return values
        attention = "approximate" if values["attention"] == "banded" else values["attention"]
        return {"history_actions": True, **values, "time": "absolute", "attention": attention}

    @property
    def tokens_per_step(self) -> int:
        """The state's, and the action's if the history holds actions."""
        return 1 + self.history_actions

    @property
    def num_tokens(self) -> int:
        """Tokens of a whole context."""
        return self.context_length * self.tokens_per_step

    @property
    def num_timesteps(self) -> int:
        """Rows of the embedding of the time since the reset; 0 if there is none."""
        return (self.max_timesteps or 1024) if self.time == "absolute" else 0

    @property
    def num_context_steps(self) -> int:
        """Earlier steps that the critic reads before a fragment: K - 1."""
        return self.context_length - 1

    def max_critic_weights(self, num_inputs: int, num_outputs: int) -> int:
        """Like `max_weights`, for the critic alone."""
        if self.pretrained is not None:
            return LARGEST_BASE_MODEL
        rows = self.num_timesteps + num_inputs + num_outputs + 8  # of embeddings, norms, head
        return num_block_weights(self.n_layer, self.n_embd) + rows * self.n_embd + 1


def num_feed_forward_weights(num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int) -> int:
    """Weights and biases of a chain of linear layers."""
    return sum((a + 1) * b for a, b in pairwise((num_inputs, *hidden_sizes, num_outputs)))


def num_block_weights(num_layers: int, width: int) -> int:
    """Weights of the blocks of a GPT-2."""
    return num_layers * (12 * width + 13) * width
