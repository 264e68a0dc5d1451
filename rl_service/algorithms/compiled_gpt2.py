"""Steps of a GPT-2, as a critic or an actor, in machine code: see `gpt2.c`."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch
from torch import nn

from custom_models.gpt2_actor import GPT2Actor
from custom_models.gpt2_critic import GPT2Critic, StepReader
from custom_models.interfaces import Chunks
from rl_service.algorithms.compiled import (
    MOST_OUTPUTS,
    CompiledSteps,
    address,
    last_layer,
    plain,
)

_MULTIPLE = 16
"""The width must be a multiple of this: the floats of a vector register."""


def reads_trunk(net: nn.Module) -> bool:
    """Whether `gpt2.c` computes what this net computes."""
    if type(net) not in (GPT2Critic, GPT2Actor):
        return False
    net = cast(StepReader, net)
    trunk = net.trunk
    return (
        getattr(net, "attention", "banded") != "window"
        and not net.reads_actions
        and net.embed_timestep is None
        and trunk.is_plain
        and trunk.dropout == 0.0
        and trunk.n_embd % _MULTIPLE == 0
        and last_layer(net).out_features < MOST_OUTPUTS
    )


class GPT2Steps(CompiledSteps):
    """Steps of a GPT-2 that reads states alone."""

    prefix = "gpt2"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        net = cast(StepReader, self.optimizer.net)
        self._reader = net
        layers: Any = zip(net.trunk.h, net.reaches, strict=True)
        self._blocks = [_Block(reach, *self._parts(block)) for block, reach in layers]
        self._turns: dict[int, torch.Tensor] = {}
        """Rotations of the steps of a chunk, by its length."""

    def _parts(self, block: Any) -> tuple[Any, Any]:
        parts = (
            block.ln_1,
            block.attn.c_attn,
            block.attn.c_proj,
            block.ln_2,
            block.mlp.c_fc,
            block.mlp.c_proj,
        )
        offsets = zip(*map(self._offsets, parts), strict=True)
        weights, biases = ((ctypes.c_int64 * len(parts))(*each) for each in offsets)
        return weights, biases

    def _offsets(self, module: Any) -> Any:
        offset = self.optimizer.offset
        return (ctypes.c_int64 * 2)(offset(module.weight), offset(module.bias))

    def plan_and_inputs(
        self, inputs: Chunks, num_steps: int
    ) -> tuple[Any, Any, list[torch.Tensor]]:
        kept = [plain(inputs.obs, torch.float32), plain(inputs.segment_ids, torch.int64)]
        trunk = self._trunk(inputs.obs.shape[1], num_steps)
        return trunk, ctypes.byref(_Chunks(*map(address, kept))), kept

    def _trunk(self, num_steps: int, num_last: int) -> _Trunk:
        net, blocks = self._reader, self._blocks
        trunk, head = net.trunk, last_layer(net)
        return _Trunk(
            len(blocks),
            trunk.n_embd,
            trunk.n_head,
            4 * trunk.n_embd,
            net.embed_state.in_features,
            head.out_features,
            (_Block * len(blocks))(*blocks),
            *map(self._offsets, (net.embed_state, net.embed_ln, trunk.ln_f, head)),
            trunk.ln_f.eps,
            num_steps,
            num_last,
            address(self._turns_of(num_steps)) if net.relative_time else None,
        )

    def _turns_of(self, num_steps: int) -> torch.Tensor:
        if num_steps not in self._turns:
            turns = torch.view_as_real(self._reader.turns(torch.arange(num_steps)))
            self._turns[num_steps] = turns.float().contiguous()  # (T, 1, D/2, 2)
        return self._turns[num_steps]


class _Block(ctypes.Structure):
    _fields_ = [
        ("reach", ctypes.c_int64),
        ("weight", ctypes.c_int64 * 6),
        ("bias", ctypes.c_int64 * 6),
    ]


class _Trunk(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_layers", "width", "num_heads", "hidden")),
        ("obs_size", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("blocks", ctypes.POINTER(_Block)),
        *((name, ctypes.c_int64 * 2) for name in ("embed", "embed_ln", "ln_f", "head")),
        ("epsilon", ctypes.c_double),
        ("num_steps", ctypes.c_int64),
        ("num_last", ctypes.c_int64),
        ("turns", ctypes.c_void_p),
    ]


class _Chunks(ctypes.Structure):
    _fields_ = [
        ("obs", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
    ]
