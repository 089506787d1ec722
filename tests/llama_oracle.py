"""llama.cpp as the judge of tokens and log-probabilities: `xllamacpp` serves a model file, and is asked over HTTP."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


class LlamaCpp:
    """A model opened by llama.cpp. It is closed when the object is dropped."""

    def __init__(self, path: Path, *, context: int = 128) -> None:
        xllamacpp = pytest.importorskip("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.warmup = False
        params.fit_params = False
        params.verbosity = -1
        params.port = 0
        # Attention and caches in float32.
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        self._server = xllamacpp.Server(params)

    def _ask(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        answer = self._ask("/tokenize", content=text, add_special=add_special, parse_special=parse_special)
        return answer["tokens"]

    def decode(self, ids: list[int]) -> str:
        """With special tokens shown. The bytes must be valid UTF-8."""
        return self._ask("/detokenize", tokens=ids)["content"]

    def logprobs(self, ids: list[int], vocab_size: int) -> npt.NDArray[np.float64]:
        """Of each token [vocab] behind the prompt."""
        answer = self._ask(
            "/completion", prompt=ids, n_predict=1, temperature=0, n_probs=vocab_size, cache_prompt=False
        )
        found = answer["completion_probabilities"][0]["top_logprobs"]
        values = np.full(vocab_size, np.nan)
        for entry in found:
            values[entry["id"]] = entry["logprob"]
        return values
