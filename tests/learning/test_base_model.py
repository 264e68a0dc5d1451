"""SmolLM2 out of its package is a language model: it knows France (a minute, 94 MB to load)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from custom_models.base_models import STORE_VARIABLE, find_model
from rl_service.cli.app import main


def test_smollm2_is_fetched_and_completes_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path))
    assert main(["models", "fetch", "smollm2-135m", "--json"]) == 0
    folder = Path(json.loads(capfd.readouterr().out.splitlines()[-1])["path"])
    assert folder == find_model("smollm2-135m")

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]  # digits stand alone
    assert tokenizer.model_max_length == 8192
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokens = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**tokens, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
