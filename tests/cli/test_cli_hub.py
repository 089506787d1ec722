"""A model by its name on a hub, from the command line: the real client library, a hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import program

from hub_server import Repository, hub_server


def test_generate_by_name(tmp_path: Path, demo_path: Path) -> None:
    with hub_server() as hub:
        files = {f"SmolLM2-{tag}.gguf": demo_path.read_bytes() for tag in ("Q4_K_M", "Q8_0")}
        hub.repositories["org/SmolLM2-GGUF"] = Repository(files)
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "TOKENTRAIL_HUB": ""}

        def ask(name: str, *flags: str, **more: str):
            question = ("What is the capital of France?", "--temperature", "0", "--max-tokens", "3", "--json")
            return program("generate", "-m", name, *question, *flags, environment={**environment, **more})

        first = ask("org/SmolLM2-GGUF:q4_k_m")
        assert first.code == 0, first.err
        answer = json.loads(first.out)
        assert answer["model"] == "org/SmolLM2-GGUF:q4_k_m"
        assert hub.downloaded() == {"SmolLM2-Q4_K_M.gguf"}
        again = ask("org/SmolLM2-GGUF:Q4_K_M", HF_HUB_OFFLINE="1")
        assert json.loads(again.out)["text"] == answer["text"]
        assert "note: Hugging Face cannot be asked (HF_HUB_OFFLINE is set)" in again.err

        refused = ask("org/SmolLM2-GGUF")
        assert refused.code == 1
        assert refused.out == ""
        assert "holds 2 GGUF files: Q4_K_M, Q8_0" in refused.err.splitlines()[-1]
        assert "has no revision 'v9'" in ask("org/SmolLM2-GGUF:Q8_0", "--revision", "v9").err.splitlines()[-1]
