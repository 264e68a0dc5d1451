"""The critic against what must hold: causality, padding, borders, and independent references."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from custom_models.attention import attend, split_reach
from custom_models.configs import GPT2CriticConfig
from custom_models.gpt2_critic import GPT2Critic
from custom_models.interfaces import PADDING_SEGMENT, Chunks
from custom_models.spaces import ActionSpec

OBS_SIZE, NUM_ACTIONS, K = 5, 3, 6
DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(NUM_ACTIONS))
BOX = ActionSpec.from_space(gym.spaces.Box(-1.0, 1.0, (2,)))


def build_critic(action_spec: ActionSpec = DISCRETE, **changes: object) -> GPT2Critic:
    config = GPT2CriticConfig(
        **{
            "context_length": K,
            "n_layer": 2,
            "n_head": 4,
            "n_embd": 16,
            "history_actions": True,
            **changes,
        }
    )
    torch.manual_seed(0)
    return GPT2Critic(config, OBS_SIZE, action_spec).eval()


def random_chunks(
    batch: int = 2, steps: int = 40, seed: int = 0, action_spec: ActionSpec = DISCRETE
) -> Chunks:
    generator = torch.Generator().manual_seed(seed)
    if action_spec.kind == "discrete":
        actions = torch.randint(NUM_ACTIONS, (batch, steps), generator=generator)
    else:
        actions = torch.randn(batch, steps, action_spec.size, generator=generator)
    return Chunks(
        obs=torch.randn(batch, steps, OBS_SIZE, generator=generator),
        actions=actions,
        rewards=torch.zeros(batch, steps),
        timesteps=torch.arange(steps).expand(batch, steps).clone(),
        segment_ids=torch.zeros(batch, steps, dtype=torch.int64),
    )


def values(critic: GPT2Critic, chunks: Chunks, num_values: int) -> Tensor:
    with torch.no_grad():
        return critic(chunks, num_values)


@pytest.mark.parametrize("attention", ["banded", "window"])
@pytest.mark.parametrize("action_spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_a_later_step_never_changes_an_earlier_value(
    attention: str, action_spec: ActionSpec
) -> None:
    critic = build_critic(action_spec, attention=attention)
    before = random_chunks(action_spec=action_spec)
    after = Chunks(*(column.clone() for column in before))
    after.obs[:, 25:] += 1.0
    after.actions[:, 24:] = after.actions[:, 24:].roll(1, dims=-1)  # 24's own action included
    old, new = values(critic, before, 40), values(critic, after, 40)
    torch.testing.assert_close(old[:, :25], new[:, :25], rtol=0, atol=1e-6)
    assert (old[:, 25] - new[:, 25]).abs().min() > 1e-4


@pytest.mark.parametrize("attention", ["banded", "window"])
def test_the_previous_action_changes_a_value(attention: str) -> None:
    critic = build_critic(attention=attention)
    before = random_chunks()
    after = Chunks(*(column.clone() for column in before))
    after.actions[:, 24] = (after.actions[:, 24] + 1) % NUM_ACTIONS
    difference = (values(critic, before, 40) - values(critic, after, 40)).abs()
    assert difference[:, :25].max() < 1e-6
    assert difference[:, 25].min() > 1e-5


@pytest.mark.parametrize("attention", ["banded", "window"])
def test_padding_never_changes_a_value(attention: str) -> None:
    critic = build_critic(attention=attention)
    chunks = random_chunks(steps=20)
    padded = Chunks(*(column[:, :7].clone() for column in random_chunks(steps=7, seed=9)))
    padded = padded._replace(segment_ids=torch.full_like(padded.segment_ids, PADDING_SEGMENT))
    joined = Chunks(*(torch.cat(pair, dim=1) for pair in zip(padded, chunks, strict=True)))
    torch.testing.assert_close(
        values(critic, joined, 20), values(critic, chunks, 20), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("attention", ["banded", "window"])
def test_context_never_crosses_an_episode(attention: str) -> None:
    critic = build_critic(attention=attention)
    chunks = random_chunks()
    chunks.segment_ids[:, 15:] = 1
    chunks.timesteps[:, 15:] -= 15
    alone = Chunks(*(column[:, 15:] for column in chunks))
    torch.testing.assert_close(
        values(critic, chunks, 25), values(critic, alone, 25), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("attention", ["banded", "window", "approximate"])
def test_a_value_ignores_what_lies_beyond_its_reach(attention: str) -> None:
    critic = build_critic(attention=attention).double()  # the farthest step counts for 1e-9
    before = random_chunks()
    before = before._replace(obs=before.obs.double())
    after = before._replace(obs=before.obs.clone())
    after.obs[:, 0] += 1.0
    difference = (values(critic, before, 40) - values(critic, after, 40)).abs().amax(0)
    reach = (K - 1) * (2 if attention == "approximate" else 1)
    assert difference[reach] > 1e-12
    assert difference[reach + 1 :].max() == 0.0


@pytest.mark.parametrize("attention", ["window", "approximate"])
@pytest.mark.parametrize("time", ["relative", "none", "absolute"])
def test_all_attentions_are_the_same_for_one_layer(attention: str, time: str) -> None:
    banded = build_critic(n_layer=1, time=time, attention="banded")
    other = build_critic(n_layer=1, time=time, attention=attention)
    chunks = random_chunks()
    chunks.segment_ids[0, 22:] = 1
    torch.testing.assert_close(
        values(banded, chunks, 30), values(other, chunks, 30), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("num_values", [8, 16, 64, 128])
@pytest.mark.parametrize("n_layer", [1, 2, 3])
@pytest.mark.parametrize("context_length", [2, 20])
def test_a_value_is_the_same_in_chunks_of_any_length(
    context_length: int, n_layer: int, num_values: int
) -> None:
    """Both those that fit into one block of queries, and those that take several."""
    critic = build_critic(n_layer=n_layer, context_length=context_length)
    episode = random_chunks(batch=1, steps=150)
    expected = values(critic, episode, 150)
    for start in (0, 1, context_length - 1, 22):
        first = max(0, start - context_length + 1)
        chunk = Chunks(*(column[:, first : start + num_values] for column in episode))
        torch.testing.assert_close(
            values(critic, chunk, num_values),
            expected[:, start : start + num_values],
            rtol=0,
            atol=1e-5,
        )


def plain_values(critic: GPT2Critic, chunks: Chunks) -> Tensor:
    """Token by token, straight from the definition; (B, T) for tiny chunks."""
    trunk, x = critic.trunk, critic.embed(chunks)
    batch, steps, per_step, width = x.shape
    heads, size = trunk.n_head, width // trunk.n_head
    speeds = torch.tensor([critic.context_length ** -(i / (size // 2)) for i in range(size // 2)])

    def pairs(y: Tensor) -> Tensor:
        return torch.view_as_complex(y.reshape(heads, size // 2, 2))

    for block, reach in zip(trunk.h, critic.reaches, strict=True):
        q, k, v = (block.ln_1(x) @ block.attn.c_attn.weight + block.attn.c_attn.bias).split(
            width, -1
        )
        out = torch.zeros_like(x)
        for b in range(batch):
            segments = chunks.segment_ids[b].tolist()
            for i in range(steps):
                for own in range(per_step):
                    seen = [
                        (j, part)
                        for j in range(max(0, i - reach + 1), i + 1)
                        for part in range(per_step)
                        if segments[j] == segments[i] and (j < i or part <= own)
                    ]
                    scores = []
                    for j, part in seen:
                        product = pairs(q[b, i, own]) * pairs(k[b, j, part]).conj()
                        if critic.relative_time:
                            product = product * torch.exp(1j * speeds * (i - j))
                        scores.append(product.sum(-1).real / size**0.5)  # (H,)
                    weights = torch.stack(scores).softmax(0)[..., None]  # (seen, H, 1)
                    found = torch.stack([v[b, j, part].view(heads, size) for j, part in seen])
                    out[b, i, own] = (weights * found).sum(0).reshape(width)
        x = x + block.attn.c_proj(out)
        x = x + block.mlp(block.ln_2(x))
    result: Tensor = critic.value_head(trunk.ln_f(x[:, :, 0])).squeeze(-1)
    return result


@pytest.mark.parametrize("n_layer", [1, 2, 3])
@pytest.mark.parametrize("time", ["relative", "none", "absolute"])
@pytest.mark.parametrize("history_actions", [True, False], ids=["actions", "no actions"])
def test_one_pass_equals_a_plain_recomputation(
    n_layer: int, time: str, history_actions: bool
) -> None:
    critic = build_critic(
        n_layer=n_layer, n_head=2, n_embd=8, time=time, history_actions=history_actions
    )
    with torch.no_grad():  # weights of 0.02 would hide most mistakes
        for weight in critic.trunk.h.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    chunks = random_chunks(steps=14)
    chunks.segment_ids[1, 9:] = 1
    with torch.no_grad():
        expected = plain_values(critic, chunks)
    torch.testing.assert_close(values(critic, chunks, 14), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("context_length", "layers"), [(1, 1), (8, 1), (8, 2), (3, 5), (64, 3)])
def test_the_layers_together_look_back_one_context(context_length: int, layers: int) -> None:
    reaches = split_reach(context_length, layers)
    assert len(reaches) == layers
    assert sum(reach - 1 for reach in reaches) == context_length - 1
    assert max(reaches) - min(reaches) <= 1


def test_relative_time_does_not_know_the_time_since_the_reset() -> None:
    chunks = random_chunks()
    later = chunks._replace(timesteps=chunks.timesteps + 300)
    for time, is_same in (("relative", True), ("none", True), ("absolute", False)):
        critic = build_critic(time=time)
        same = torch.equal(values(critic, chunks, 20), values(critic, later, 20))
        assert same == is_same, time


def test_only_without_time_the_order_of_earlier_steps_is_unknown() -> None:
    chunks = random_chunks(steps=K)
    order = torch.tensor([3, 0, 4, 2, 1, 5])
    mixed = Chunks(*(column[:, order] for column in chunks))
    for time, is_same in (("relative", False), ("none", True), ("absolute", False)):
        critic = build_critic(time=time, n_layer=1).double()  # the order counts for 1e-5
        first, second = (
            values(critic, c._replace(obs=c.obs.double()), 1)
            for c in (chunks, mixed._replace(timesteps=chunks.timesteps))
        )
        assert ((first - second).abs().max() < 1e-12) == is_same, time


def test_a_history_without_actions_ignores_them() -> None:
    critic = build_critic(history_actions=False)
    chunks = random_chunks()
    other = chunks._replace(actions=(chunks.actions + 1) % NUM_ACTIONS)
    assert torch.equal(values(critic, chunks, 40), values(critic, other, 40))


def reference_mask(segment_ids: Tensor) -> Tensor:
    """Token by token, straight from the definition; (B, 1, 2T, 2T) to add to the scores."""
    batch, steps = segment_ids.shape
    mask = torch.full((batch, 1, 2 * steps, 2 * steps), torch.finfo(torch.float32).min)
    for b in range(batch):
        for query in range(2 * steps):
            for key in range(query + 1):
                near = query // 2 - key // 2 < K
                same = segment_ids[b, query // 2] == segment_ids[b, key // 2]
                real = segment_ids[b, query // 2] != PADDING_SEGMENT
                if (near and same and real) or query == key:
                    mask[b, 0, query, key] = 0.0
    return mask


@pytest.mark.parametrize("n_layer", [1, 2, 3])
def test_approximate_equals_hugging_face_gpt2_with_the_same_mask(n_layer: int) -> None:
    critic = build_critic(n_layer=n_layer, attention="approximate", time="absolute")
    chunks = random_chunks()
    chunks.segment_ids[0, :4] = PADDING_SEGMENT
    chunks.segment_ids[1, 17:] = 1
    gpt2 = GPT2Model(
        GPT2Config(
            vocab_size=1, n_layer=n_layer, n_head=4, n_embd=16, bos_token_id=None, eos_token_id=None
        )
    ).eval()
    gpt2.wpe.weight.data.zero_()
    gpt2.h.load_state_dict(critic.trunk.h.state_dict())
    gpt2.ln_f.load_state_dict(critic.trunk.ln_f.state_dict())
    with torch.no_grad():
        tokens = critic.embed(chunks).flatten(1, 2)
        hidden = gpt2(
            inputs_embeds=tokens,
            attention_mask=reference_mask(chunks.segment_ids),
            position_ids=torch.zeros(tokens.shape[:2], dtype=torch.int64),
            use_cache=False,
        ).last_hidden_state
        expected = critic.value_head(hidden[:, 0::2]).squeeze(-1)
    torch.testing.assert_close(values(critic, chunks, 30), expected[:, -30:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["banded", "window"])
@pytest.mark.parametrize("action_spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_gradients_reach_every_trainable_parameter(attention: str, action_spec: ActionSpec) -> None:
    critic = build_critic(
        action_spec, attention=attention, time="absolute", max_timesteps=40
    ).train()
    critic(random_chunks(action_spec=action_spec), 40).square().sum().backward()
    silent = [n for n, p in critic.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@pytest.mark.parametrize("num_heads", [1, 4])
def test_the_fused_attention_equals_the_products(num_heads: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(3, num_heads, 5, 6, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(3, num_heads, 9, 6, dtype=torch.float64).requires_grad_() for _ in "kv")
    visible = torch.rand(3, 1, 5, 9) < 0.5
    visible[..., 0] = True  # no query without a key
    fused = attend(q, k, v, visible, 0.4, 0.0)
    products = attend(q, k, v, visible, 0.4, 1e-9)  # drops nothing
    torch.testing.assert_close(fused, products, rtol=0, atol=1e-8)
    weight = torch.randn_like(fused)
    for mine, theirs in zip(
        torch.autograd.grad(fused, (q, k, v), weight),
        torch.autograd.grad(products, (q, k, v), weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)


def test_attention_weights_are_dropped_as_often_as_asked() -> None:
    q, k = torch.zeros(64, 2, 8, 4), torch.zeros(64, 2, 32, 4)
    visible = torch.ones(64, 1, 8, 32, dtype=torch.bool)
    sums = attend(q, k, torch.ones_like(k), visible, 1.0, 0.25)[..., 0]  # of 32 weights of 1/32
    assert abs(float(sums.mean()) - 1.0) < 0.01
    assert abs(float(sums.var()) * 32 - 0.25 / 0.75) < 0.03


def test_dropout_acts_in_training_only() -> None:
    critic = build_critic(dropout=0.5)
    chunks = random_chunks()
    assert torch.equal(values(critic, chunks, 40), values(critic, chunks, 40))
    critic.train()
    assert not torch.equal(values(critic, chunks, 40), values(critic, chunks, 40))


def test_a_pretrained_folder_gives_the_trunk_its_size_and_weights(tmp_path: Path) -> None:
    torch.manual_seed(5)
    source = GPT2Model(
        GPT2Config(
            vocab_size=11,
            n_positions=64,
            n_layer=3,
            n_head=2,
            n_embd=24,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    source.save_pretrained(tmp_path)
    critic = build_critic(pretrained=str(tmp_path))
    assert critic.trunk.n_embd == 24
    assert critic.trunk.n_positions == 64
    for ours, theirs in zip(critic.trunk.h.parameters(), source.h.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert values(critic, random_chunks(), 7).shape == (2, 7)


def test_a_window_longer_than_a_pretrained_trunk_is_refused(tmp_path: Path) -> None:
    GPT2Model(
        GPT2Config(
            vocab_size=11,
            n_positions=8,
            n_layer=1,
            n_head=2,
            n_embd=8,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="needs 12 positions but the trunk has 8"):
        build_critic(pretrained=str(tmp_path))
