"""The critic against what must hold: causality, padding, borders, and independent references."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from custom_models import block_attention
from custom_models.configs import GPT2CriticConfig
from custom_models.gpt2_critic import GPT2Critic
from custom_models.interfaces import PADDING_SEGMENT, Chunks
from custom_models.spaces import ActionSpec

OBS_SIZE, NUM_ACTIONS, K = 5, 3, 6
DISCRETE = ActionSpec.from_space(gym.spaces.Discrete(NUM_ACTIONS))
BOX = ActionSpec.from_space(gym.spaces.Box(-1.0, 1.0, (2,)))


def build_critic(action_spec: ActionSpec = DISCRETE, **changes: object) -> GPT2Critic:
    config = GPT2CriticConfig(
        **{"context_length": K, "n_layer": 2, "n_head": 4, "n_embd": 16, **changes}
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


@pytest.mark.parametrize("attention", ["banded", "window"])
def test_a_value_ignores_what_lies_beyond_its_reach(attention: str) -> None:
    critic = build_critic(attention=attention).double()  # the farthest step counts for 1e-9
    before = random_chunks()
    before = before._replace(obs=before.obs.double())
    after = before._replace(obs=before.obs.clone())
    after.obs[:, 0] += 1.0
    difference = (values(critic, before, 40) - values(critic, after, 40)).abs().amax(0)
    reach = (K - 1) * (1 if attention == "window" else 2)
    assert difference[reach] > 1e-12
    assert difference[reach + 1 :].max() == 0.0


def test_window_equals_banded_for_one_layer() -> None:
    banded = build_critic(n_layer=1, attention="banded")
    window = build_critic(n_layer=1, attention="window")
    chunks = random_chunks()
    chunks.segment_ids[0, 22:] = 1
    torch.testing.assert_close(
        values(banded, chunks, 30), values(window, chunks, 30), rtol=0, atol=1e-5
    )


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
def test_banded_equals_hugging_face_gpt2_with_the_same_mask(n_layer: int) -> None:
    critic = build_critic(n_layer=n_layer)
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
        tokens = critic._embed(chunks).flatten(1, 2)
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
    critic = build_critic(action_spec, attention=attention, max_timesteps=40).train()
    critic(random_chunks(action_spec=action_spec), 40).square().sum().backward()
    silent = [n for n, p in critic.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def attention_case(num_keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two blocks of 4 queries whose windows are 6 wide; both windows together need 10 keys."""
    torch.manual_seed(0)
    q = torch.randn(1, 2, 2, 3, 4, dtype=torch.float64, requires_grad=True)  # (B, N, H, D, r)
    k = torch.randn(1, num_keys, 2, 3, dtype=torch.float64, requires_grad=True)  # (B, S, H, D)
    v = torch.randn_like(k, requires_grad=True)
    mask = -1e9 * torch.randint(0, 2, (1, 2, 6, 4), dtype=torch.float64)
    mask[:, :, -1] = 0.0  # no query without a key
    return q, k, v, mask


@pytest.mark.parametrize("tile_scores", [1, 1000])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("num_keys", [10, 13])
def test_gradients_of_the_written_out_attention_equal_autograds(
    num_keys: int, dropout: float, tile_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_attention, "_TILE_SCORES", tile_scores)
    q, k, v, mask = attention_case(num_keys)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same entries are dropped each time
        return block_attention.block_attention(q, k, v, mask, 4, dropout)

    assert torch.autograd.gradcheck(attend, (q, k, v))


@pytest.mark.parametrize("num_keys", [8, 10, 13])
def test_the_written_out_attention_equals_torchs(num_keys: int) -> None:
    q, k, v, mask = attention_case(num_keys)
    missing = max(0, 10 - num_keys)
    mask[:, 0, :missing] = -1e9  # keys before the first: there are none
    ours = block_attention.block_attention(q, k, v, mask, 4, 0.0)
    torchs = block_attention._fused(q, k, v, mask, 4, 0.0)
    torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-12)
    weight = torch.randn_like(ours)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (q, k, v), weight),
        torch.autograd.grad(torchs, (q, k, v), weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


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
