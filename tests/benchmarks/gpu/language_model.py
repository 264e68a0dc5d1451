"""The forward pass of a language model that reads prompts, against the arithmetic that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import gymnasium as gym
import torch

from custom_models.configs import LLMPolicyConfig
from custom_models.llm_policy import LLMActor
from custom_models.spaces import ActionSpec
from tests.benchmarks import flops
from tests.benchmarks.gpu import peaks
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved
from tests.benchmarks.tables import Table

PRETRAINED = "smollm2-135m"
OBSERVATION_SIZE, NUM_ACTIONS = 17, 6
"""Of HalfCheetah-v4."""
TOKENS = 104
"""About as many as such an observation has."""
PROMPTS = (16, 64, 256, 1024)
WAYS = {"float32": None, "bf16 autocast": torch.bfloat16}
REPEATS, CALLS = 5, 10


def measure(quick: bool) -> Raw:
    """Seconds of a pass, by number of prompts and way.

    Raises:
        FileNotFoundError: if the model was never fetched.
    """
    spec = ActionSpec.from_space(gym.spaces.Box(-1.0, 1.0, (NUM_ACTIONS,)))
    actor = LLMActor(LLMPolicyConfig(pretrained=PRETRAINED), OBSERVATION_SIZE, spec)
    actor.to(peaks.DEVICE)
    model = actor.language_model.config
    size = flops.LlamaSize(
        model.num_hidden_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.intermediate_size,
    )
    batches = PROMPTS[:1] if quick else PROMPTS
    return {
        str(num_prompts): {
            "flop": num_prompts * flops.llama_forward(size, TOKENS),
            "seconds": _seconds(actor, model.vocab_size, num_prompts),
        }
        for num_prompts in batches
    }


def _seconds(actor: LLMActor, vocabulary_size: int, num_prompts: int) -> dict[str, list[float]]:
    tokens = torch.randint(vocabulary_size, (num_prompts, TOKENS), device=peaks.DEVICE)

    @torch.no_grad()
    def read(dtype: torch.dtype | None) -> None:
        actor.autocast_dtype = dtype
        actor.last_hidden(tokens)

    candidates: dict[str, Callable[[], float]] = {
        way: partial(peaks.seconds_per_call, partial(read, dtype), CALLS)
        for way, dtype in WAYS.items()
    }
    sys.stderr.write(f"{PRETRAINED}, {num_prompts} prompts …\n")
    return interleaved(candidates, REPEATS, warmups=1)


def table(raw: Raw, peak_flop_per_s: dict[str, list[float]]) -> Table:
    """One row a batch and way."""
    return Table(
        f"{PRETRAINED} on one GPU: the last token's hidden state of prompts",
        ("prompts", "way", "ms", "tokens/s", "TFLOP/s", "share of the peak"),
        [
            _row(num_prompts, way, case, median(peak_flop_per_s[way.split()[0]]))
            for num_prompts, case in raw.items()
            for way in case["seconds"]
        ],
        f"{TOKENS} tokens a prompt, as many as an observation of HalfCheetah-v4 has. The peak is "
        f"that of a large matrix product, measured in the same run.",
    )


def _row(num_prompts: str, way: str, case: Raw, peak: float) -> tuple[str, ...]:
    seconds = median(case["seconds"][way])
    rate = case["flop"] / seconds
    return (
        f"{int(num_prompts):,}",
        way,
        f"{1e3 * seconds:.2f}",
        f"{int(num_prompts) * TOKENS / seconds:,.0f}",
        f"{rate / 1e12:.1f}",
        f"{100 * rate / peak:.0f} %",
    )
