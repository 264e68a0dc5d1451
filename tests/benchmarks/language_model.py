"""The language model as the policy: what batching its calls and keeping its features gives."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved, ratio
from tests.benchmarks.tables import Table

GOAL_BATCHED, GOAL_CACHED = 5, 50


class Sizes(NamedTuple):
    pretrained: str | None = "smollm2-135m"
    num_layers: int | None = 4
    num_envs: int = 32
    minibatch_size: int = 128
    repeats: int = 5


QUICK = Sizes(None, None, num_envs=4, minibatch_size=8, repeats=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Seconds of acting on a vector of envs, and of one gradient step, each in two ways."""
    sizes = QUICK if quick else Sizes()
    path = "tests.benchmarks.subjects.language_policies:LanguagePolicies"
    with open_subject(path, pretrained=sizes.pretrained, num_layers=sizes.num_layers) as policies:
        candidates = {
            "one batched call": partial(policies.act_together, sizes.num_envs),
            "a call for each env": partial(policies.act_one_by_one, sizes.num_envs),
            "cached features": partial(policies.learn_from_features, sizes.minibatch_size),
            "features computed again": partial(policies.learn_from_prompts, sizes.minibatch_size),
        }
        return {
            "sizes": sizes._asdict(),
            "tokens_per_prompt": policies.tokens_per_prompt(),
            "seconds": interleaved(candidates, sizes.repeats, warmups=1),
        }


def tables(raw: Raw) -> list[Table]:
    """Acting and learning, the fast way beside the plain one."""
    sizes, seconds, tokens = raw["sizes"], raw["seconds"], raw["tokens_per_prompt"]
    num_envs, minibatch = sizes["num_envs"], sizes["minibatch_size"]
    together, alone = seconds["one batched call"], seconds["a call for each env"]
    cached, again = seconds["cached features"], seconds["features computed again"]
    model = sizes["pretrained"] or "a small random model"
    layers = f", first {sizes['num_layers']} layers" if sizes["num_layers"] else ""
    return [
        Table(
            "Acting with a language model",
            ("way", "ms a vector step", "env steps/s", "tokens/s", "times faster", "goal"),
            [
                _acting_row("one batched call", together, alone, num_envs, tokens),
                _acting_row("a call for each env", alone, alone, num_envs, tokens),
            ],
            f"{model}{layers}, {num_envs} envs of CartPole-v1, {tokens:.0f} tokens a prompt, one "
            f"core; the env itself is not stepped.",
        ),
        Table(
            "One gradient step of a head on a frozen language model",
            ("way", "ms", "times faster", "goal"),
            [
                ("cached features", _ms(cached), str(ratio(again, cached)), f"{GOAL_CACHED}"),
                ("features computed again", _ms(again), str(ratio(again, again)), ""),
            ],
            f"Minibatch {minibatch}, the same model and core.",
        ),
    ]


def _acting_row(
    way: str, seconds: list[float], plain: list[float], num_envs: int, tokens: float
) -> tuple[str, ...]:
    rate = num_envs / median(seconds)
    goal = f"{GOAL_BATCHED}" if seconds is not plain else ""
    return (
        way,
        _ms(seconds),
        f"{rate:,.0f}",
        f"{rate * tokens:,.0f}",
        str(ratio(plain, seconds)),
        goal,
    )


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * median(seconds):.2f}"
