"""Writes the prompts of a language model whose observations are text.

A prompt is tokenised as a whole, and once: environments show the same texts again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.observation_text import (
    ARROW,
    CUE,
    NUMBER_LIMIT,
    PADDING,
    STEP_END,
    PromptWriter,
    Tokens,
    check_names,
    put_in_front,
)
from custom_models.spaces import ActionSpec, FloatArray
from custom_models.text import brief
from custom_models.text_rows import read_row

_OFFER = "\nActions: "
"""Stands before the admissible actions."""
_PLACE = "\ue000"
"""Stands for a prompt's own text while a chat template is filled in; of no language."""
_BEGINNINGS = ("a", "A", "0", " ", "  ", "\n", "\n\n", "\t", ".", "-", "é", "中", "\u0301")
"""Texts that a tokenizer may join, each in its own way, to what stands before them."""
_MOST_KNOWN, _MOST_TOKENS = 2**14, 2**22
"""Texts whose tokens are kept, and their tokens in all, 16 MB: a prompt may have thousands."""


class TextPromptWriter:
    """Turns histories of text into prompts.

    A prompt is, for each earlier step, its text, an arrow, its action and a new line; then the
    current text, the admissible actions if there are any, and a cue. The task stands before all
    that. Where the tokenizer has a chat template, the task is the system message (or the first
    line, if the template takes none), the rest is the user's, and the answer begins where the cue
    would be.

    Args:
        tokenizer: a tokenizer of transformers.
        action_spec: the actions.
        config: how a prompt is written.

    Raises:
        ValueError: if the tokenizer cannot distinguish actions, or its chat template cannot be
            used.
    """

    def __init__(self, tokenizer: Any, action_spec: ActionSpec, config: LLMPolicyConfig) -> None:
        self._tokenizer = tokenizer
        self._action_spec = action_spec
        self._scores = config.action_scoring == "tokens"
        self.context_length = config.context_length
        self.max_tokens = config.max_prompt_tokens
        """Of any prompt, the task's not counted."""
        self.max_action_tokens = config.max_action_tokens if self._scores else 0
        """Of any action that is scored."""
        self.action_names = config.action_names or tuple(map(str, range(action_spec.size)))
        task = config.task.strip()
        self.before: str = f"{task}\n" if task else ""
        """Text that all prompts begin with."""
        self._end, self._blank = CUE, " "
        self._added = put_in_front(tokenizer)
        if config.chat_template and tokenizer.chat_template:
            self.before, self._end = _filled_in(tokenizer, task)
            self._added, self._blank = [], ""  # the template has written them
        starts = [self._added + row for row in self._read([self.before + b for b in _BEGINNINGS])]
        columns = zip(*starts, strict=False)
        self.task_tokens = [c[0] for c in takewhile(lambda c: len(set(c)) == 1, columns)]
        """What all prompts begin with: the task, behind what the tokenizer adds."""
        added = tokenizer.added_tokens_decoder.values()
        # Of one character, it may stand for whatever the tokenizer does not know.
        self._controls = [str(each) for each in added if each.special and len(str(each)) > 1]
        self._prompt_tokens = _Known(self._read_prompts)
        self._action_tokens = _Known(self._read_actions)
        if action_spec.kind == "discrete":
            check_names(self.action_names, self._read([f" {name}" for name in self.action_names]))
        if self._scores:
            self._action_tokens(self.action_names)

    def _read(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, without those that the tokenizer adds."""
        rows: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return rows

    def _read_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens after the task's of each whole prompt."""
        size = len(self.task_tokens)
        rows = [self._added + row for row in self._read(texts)]
        for text, row in zip(texts, rows, strict=True):
            if row[:size] == self.task_tokens and len(row) - size <= self.max_tokens:
                continue
            own = brief(text[len(self.before) :], 60)
            if row[:size] != self.task_tokens:
                raise ValueError(
                    f"the tokenizer joins the end of model.task to {own!r}, so the task cannot be "
                    f"read once for all prompts; end the task in another way"
                )
            raise ValueError(
                f"the prompt {own!r}… has {len(row) - size} tokens, more than "
                f"model.max_prompt_tokens={self.max_tokens}; raise that, or lower "
                f"model.context_length"
            )
        return [row[size:] for row in rows]

    def _read_actions(self, names: Sequence[str]) -> list[list[int]]:
        """Tokens of each action's text where it follows a prompt."""
        texts = [self._end + self._blank + name for name in names]
        known, *rows = self._read([self._end, *texts])
        for name, row in zip(names, rows, strict=True):
            if row[: len(known)] != known:
                raise ValueError(
                    f"the tokenizer joins the action {name!r} to the end of the prompt; give it "
                    f"another name, or use another tokenizer"
                )
            if len(row) - len(known) > self.max_action_tokens:
                raise ValueError(
                    f"the action {brief(name, 60)!r} has {len(row) - len(known)} tokens, more than "
                    f"model.max_action_tokens={self.max_action_tokens}; raise that"
                )
        return [row[len(known) :] for row in rows]

    def prompts(self, history: History) -> Tokens:
        """Token ids of B prompts, (B, T), `PADDING` on the left of those that are shorter.

        Raises:
            ValueError: if a prompt is too long, or what was observed cannot be written.
        """
        rows = self._prompt_tokens([self.before + text for text in self.texts(history)])
        width = max(map(len, rows))
        out = np.full((len(rows), width), PADDING, np.int32)
        for tokens, row in zip(out, rows, strict=True):
            tokens[width - len(row) :] = row
        return out

    def actions(self, history: History) -> Tokens:
        """Token ids of the actions to be scored, (B, A, L), `PADDING` right of shorter ones.

        Where the observation brings admissible actions it is these, and the others are empty.

        Raises:
            ValueError: if one is too long.
        """
        shape = len(history.obs), self._action_spec.size, self.max_action_tokens
        out = np.full(shape, PADDING, np.int32)
        for row, obs in zip(out, history.obs[:, -1], strict=True):
            names = self._read_row(obs)[1] or self.action_names
            for tokens, known in zip(row, self._action_tokens(names), strict=False):
                tokens[: len(known)] = known
        return out

    def texts(self, history: History) -> list[str]:
        """B prompts as text, without `before`."""
        return [self._text(*row) for row in zip(*history, strict=True)]

    def _text(self, obs: FloatArray, actions: npt.NDArray[Any], num_steps: np.int64) -> str:
        first = len(actions) - int(num_steps)
        *earlier, (text, offered) = map(self._read_row, obs[first:])
        if offered and not self._scores:
            raise ValueError(
                "an admissible action's number means another action at each step; use "
                "model.action_scoring=tokens"
            )
        steps = [
            f"{seen}{ARROW} {self._name(offered_then, action)}{STEP_END}"
            for (seen, offered_then), action in zip(earlier, actions[first:], strict=True)
        ]
        offer = _OFFER + ", ".join(offered) if offered else ""
        return "".join([*steps, text, offer, self._end])

    def _read_row(self, obs: FloatArray) -> tuple[str, list[str]]:
        """The text of a row, and the admissible actions.

        Raises:
            ValueError: if one of them has a control token of the tokenizer, with which it could end
                its own part of the prompt.
        """
        text, offered = read_row(obs)
        for control in self._controls:
            if any(control in part for part in (text, *offered)):
                raise ValueError(
                    f"the text holds {control!r}, which is a control token of the language model; "
                    f"leave it out"
                )
        return text, offered

    def _name(self, offered: Sequence[str], action: Any) -> str:
        if self._action_spec.kind == "discrete":
            names = offered or self.action_names
            # A history that a client sends may hold any number.
            return names[action] if action < len(names) else str(action)
        return " ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in action.tolist())

    def reads_pieces_apart(self, task: str) -> bool:
        """True: no earlier release wrote text in another way."""
        return True


def build_writer(
    config: LLMPolicyConfig, tokenizer: Any, observation_size: int, action_spec: ActionSpec
) -> PromptWriter | TextPromptWriter:
    """What writes a model's prompts.

    Raises:
        ValueError: if the tokenizer cannot write numbers, or settings and actions do not fit.
    """
    if config.action_scoring == "tokens" and action_spec.kind != "discrete":
        raise ValueError("model.action_scoring=tokens needs discrete actions; use head")
    expected = ("discrete", len(config.action_names))
    if config.action_names and (action_spec.kind, action_spec.size) != expected:
        raise ValueError(
            f"model.action_names has {len(config.action_names)} names for {action_spec.size} "
            f"{action_spec.kind} actions"
        )
    if config.reads_text:
        return TextPromptWriter(tokenizer, action_spec, config)
    most = max(action_spec.sizes, default=0)
    if config.context_length > 1 and most > NUMBER_LIMIT + 1:
        raise ValueError(
            f"earlier actions are written as numbers up to {NUMBER_LIMIT}, and these have up to "
            f"{most} choices; use model.context_length=1"
        )
    return PromptWriter(tokenizer, observation_size, action_spec, config)


class _Known:
    """Tokens of texts, each read once.

    Args:
        read: from texts to the tokens of each.
    """

    def __init__(self, read: Callable[[Sequence[str]], list[list[int]]]) -> None:
        self._read = read
        self._tokens: dict[str, Tokens] = {}
        self._num_tokens = 0

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text; threads may ask at once."""
        found = {text: self._tokens.get(text) for text in texts}
        missing = [text for text, tokens in found.items() if tokens is None]
        if missing:
            rows = [np.array(row, np.int32) for row in self._read(missing)]
            read = dict(zip(missing, rows, strict=True))
            self._num_tokens += sum(map(len, rows))
            if len(self._tokens) + len(read) > _MOST_KNOWN or self._num_tokens > _MOST_TOKENS:
                self._tokens.clear()
                self._num_tokens = sum(map(len, rows))
            self._tokens.update(read)
            found.update(read)
        return [found[text] for text in texts]  # type: ignore[misc]  # none is missing now


def _filled_in(tokenizer: Any, task: str) -> tuple[str, str]:
    """What a chat template writes before and after a prompt's own text.

    Raises:
        ValueError: if the template does not write that text once.
    """
    alone = [{"role": "user", "content": f"{task}\n{_PLACE}" if task else _PLACE}]
    with_system = [
        {"role": "system", "content": task},
        {"role": "user", "content": _PLACE},
    ]
    for messages in (with_system, alone) if task else (alone,):
        try:
            written = tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                date_string="26 Jul 2024",  # Llama's would otherwise change from day to day
                enable_thinking=False,  # Qwen's would otherwise ask for an answer of many tokens
            )
        except Exception:  # a template may raise anything about a role that it does not know
            continue
        if written.count(_PLACE) == 1 and task in written:
            before, _, end = written.partition(_PLACE)
            return before, end
    raise ValueError(
        "the tokenizer's chat template does not write the observation once; use "
        "model.chat_template=false"
    )
