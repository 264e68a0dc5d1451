"""Base models that tests read: fetched once, kept for later runs on this machine."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from unittest import mock

from custom_models.base_models import STORE_VARIABLE
from rl_service.policies.base_model_fetch import fetch

SHARED_STORE = Path(tempfile.gettempdir()) / f"rl-service-test-models-{os.getuid()}"


@functools.cache
def gpt2_tokenizer_folder() -> Path:
    """The real GPT-2 tokenizer; processes that ask at once share one download."""
    with mock.patch.dict(os.environ, {STORE_VARIABLE: str(SHARED_STORE)}):
        return fetch("gpt2-tokenizer", on_message=lambda message: None)
