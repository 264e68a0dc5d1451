"""Bundles as a stranger may have made them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Edit = Callable[[Path], Any]


def edit_spec(bundle: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = bundle / "policy.json"
    spec = json.loads(path.read_text())
    edit(spec)
    path.write_text(json.dumps(spec))


def replace_weights(bundle: Path, content: bytes) -> None:
    """As a careful forger would: the digest is set right again."""
    (bundle / "policy.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_spec(bundle, lambda spec: spec.update(weights_sha256=digest))


def _spec(*path: str, **values: Any) -> Edit:
    """Sets values in one group of the description."""

    def edit(spec: dict[str, Any]) -> None:
        for key in path:
            spec = spec[key]
        spec.update(values)

    return lambda bundle: edit_spec(bundle, edit)


def _text(change: Callable[[str], str]) -> Edit:
    """Changes the description as text: what Python's JSON would not write."""

    def edit(bundle: Path) -> None:
        path = bundle / "policy.json"
        path.write_text(change(path.read_text()))

    return edit


def _link(name: str, target: str) -> Edit:
    def edit(bundle: Path) -> None:
        (bundle / name).unlink()
        (bundle / name).symlink_to(target)

    return edit


def _pipe(name: str) -> Edit:
    def edit(bundle: Path) -> None:
        (bundle / name).unlink()
        os.mkfifo(bundle / name)

    return edit


def _folder(name: str) -> Edit:
    def edit(bundle: Path) -> None:
        (bundle / name).unlink()
        (bundle / name).mkdir()

    return edit


def _sparse(name: str, num_bytes: int) -> Edit:
    """Takes no space on the disk."""
    return lambda bundle: os.truncate(bundle / name, num_bytes)


def _tensors(header: dict[str, Any], data: bytes = b"") -> Edit:
    text = json.dumps(header).encode()
    return lambda bundle: replace_weights(bundle, len(text).to_bytes(8, "little") + text + data)


def _both(*edits: Edit) -> Edit:
    return lambda bundle: [edit(bundle) for edit in edits]


def _empty(shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}


LLM = {"name": "llm_policy", "hidden_sizes": [64, 64], "n_layer": 1, "n_head": 2, "n_embd": 16}
GPT2 = {"name": "gpt2_critic", "context_length": 8, "n_positions": 1024}


def _model(model: dict[str, Any], context_length: int = 1) -> Edit:
    return _spec(model=model, context_length=context_length)


HOSTILE: dict[str, Edit] = {
    "200,000 layers": _spec("model", hidden_sizes=[1] * 200_000),
    "200,000 layers of no width": _spec("model", hidden_sizes=[-1] * 200_000),
    "16 of the widest layers": _spec("model", hidden_sizes=[4096] * 16),
    "the widest critic, and weights as large": _both(
        _spec("model", critic_hidden_sizes=[4096] * 16), _sparse("policy.safetensors", 2**30)
    ),
    "a critic of a million layers": _model({**GPT2, "n_layer": 10**6}, 8),
    "a critic that reads a million steps": _model(
        {**GPT2, "context_length": 10**6, "n_positions": 2 * 10**6}, 10**6
    ),
    "a language model of a million layers": _model({**LLM, "n_layer": 10**6}),
    "a separator of a megabyte": _model({**LLM, "separator": "x" * 2**20}),
    "a task of a megabyte": _model({**LLM, "task": "x" * 2**20}),
    "a language model of the largest sizes": _model(
        {**LLM, "n_layer": 48, "n_embd": 4096, "decimals": 4}
    ),
    "NaN as a score": _text(lambda text: text.replace("9.5", "NaN")),
    "infinity as a score": _text(lambda text: text.replace("9.5", "-1e999")),
    "a score of 400 digits": _text(lambda text: text.replace("9.5", "9" * 400)),
    "a list of scores": _spec(evaluation={"episode_return_mean": [[0.0] * 1000] * 100}),
    "100,000 scores": _spec(evaluation={f"s{i}": 0.0 for i in range(100_000)}),
    "NaN in provenance": _text(lambda text: text.replace('"test"', "NaN")),
    "a run of a megabyte": _spec(provenance={"run": "x" * 2**20}),
    "300,000 unknown keys": _text(
        lambda text: "{" + "".join(f'"k{i}":0,' for i in range(300_000)) + text[1:]
    ),
    "millions of empty lists": _text(lambda text: '{"x": [' + "[]," * 2_500_000 + "0]}"),
    "millions of numbers": _text(lambda text: '{"x": [' + "1," * 3_900_000 + "0]}"),
    "an environment of a megabyte": _spec("env", id="x" * 2**20),
    "an environment that clears the terminal": _spec("env", id="\x1b[2JCartPole-v1"),
    "a shape of 200 dimensions": _spec("observation_space", shape=[1] * 199 + [4]),
    "bounds that float32 has not": _spec("observation_space", high=[1e300] * 4),
    "a million million actions": _spec("action_space", n=10**12),
    "actions from 10**30": _spec("action_space", start=10**30),
    "10,000 recorded outputs": _spec(
        parity={"observations": [[0.0] * 4] * 9_000, "dist_inputs": [[0.0] * 2] * 9_000}
    ),
    "recorded observations beyond float32": _spec("parity", observations=[[1e300] * 4] * 8),
    "a filter that divides by nearly nothing": _spec(
        observation_filter={"mean": [0.0] * 4, "std": [5e-324] * 4, "clip": 1e300}
    ),
    "endless weights": _link("policy.safetensors", "/dev/zero"),
    "an endless description": _link("policy.json", "/dev/zero"),
    "an endless card": _link("card.md", "/dev/zero"),
    "weights that are a pipe": _pipe("policy.safetensors"),
    "a description that is a pipe": _pipe("policy.json"),
    "a card that is a pipe": _pipe("card.md"),
    "a card that is a secret of the reader": _link("card.md", "/etc/hostname"),
    "a terabyte of weights": _sparse("policy.safetensors", 2**40),
    "a description of a gigabyte": _sparse("policy.json", 2**30),
    "a card of a terabyte": _sparse("card.md", 2**40),
    "weights that are a folder": _folder("policy.safetensors"),
    "10,000 weights of nothing": _tensors({f"actor.w{i}": _empty([0]) for i in range(10_000)}),
    "a weight with too many numbers to count": _tensors({"actor.w": _empty([0, 2**62, 2**62])}),
}
"""What to do to a good bundle of CartPole-v1 to make each of them."""
CARDS = {name for name in HOSTILE if "card" in name}
"""Those that are good but for their card, which a policy does not need to act."""
