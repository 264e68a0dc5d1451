"""The part of a language model's actor that needs no weights: it writes prompts, as tokens.

It is all that a rollout worker needs that asks another process what the language model says.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.interfaces import Actor
from custom_models.language_model import hidden_size, load_tokenizer
from custom_models.observation_text import PADDING, Tokens
from custom_models.spaces import ActionSpec
from custom_models.text_prompts import TextPromptWriter, build_writer


class PromptActor(Actor):
    """Histories -> prompts (B, T).

    Raises:
        FileNotFoundError: if the language model's folder is not there.
        ValueError: if its tokenizer cannot write numbers, or actions that are not numbers are to
            be scored by their text.
    """

    def __init__(
        self, config: LLMPolicyConfig, observation_size: int, action_spec: ActionSpec
    ) -> None:
        super().__init__()
        self.config = config
        self.context_length = config.context_length
        tokenizer = load_tokenizer(config)
        self.vocabulary_size = len(tokenizer)
        self.writer = build_writer(config, tokenizer, observation_size, action_spec)
        self.is_frozen = config.finetune == "head"
        self.feature_size = hidden_size(config)
        self.scored: tuple[int, ...] = ()
        """Room (A, L) for actions' tokens behind each prompt, if each brings its own."""
        if config.action_scoring == "tokens" and config.reads_text:
            self.scored = action_spec.size, config.max_action_tokens
        tokens = self.writer.max_tokens + self.num_scored
        self.num_inputs: int = self.feature_size if self.is_frozen else tokens
        """Entries of a step's input."""

    @property
    def num_scored(self) -> int:
        """Tokens of actions behind each prompt."""
        return math.prod(self.scored) if self.scored else 0

    @property
    def reads_as_before(self) -> bool:
        return self.writer.reads_pieces_apart(self.config.task)

    def write(self, history: History) -> Tokens:
        """Token ids (B, T) of B prompts, and of the actions behind them if those are scored.

        For a language model that learns, they are as wide as inputs.

        Raises:
            ValueError: if a prompt is too long, or what was observed cannot be written.
        """
        prompts = self.writer.prompts(history)
        if self.is_frozen:
            return prompts
        padding = self.writer.max_tokens - prompts.shape[1]
        prompts = np.pad(prompts, ((0, 0), (padding, 0)), constant_values=PADDING)
        if not self.scored:
            return prompts
        assert isinstance(self.writer, TextPromptWriter)
        actions = self.writer.actions(history).reshape(len(prompts), -1)
        return np.concatenate([prompts, actions], axis=1)

    def prompts(self, history: History) -> list[str]:
        return [self.writer.before + text for text in self.writer.texts(history)]

    def encode(self, history: History) -> Tensor:
        raise NotImplementedError("the language model is in another process")

    def forward(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError("the language model is in another process")
