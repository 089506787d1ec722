"""Ask a server what its OpenAPI document allows, and what it forbids, with schemathesis: no crash, no hang, no answer
that the document does not describe.

    python scripts/check_openapi.py --cases 20000

Without --url, a server with the demo model, all dialects, files, kept responses and filters is started for it. Needs
`pip install '.[fuzz]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

# Not checked: that what the document allows is accepted (that a prompt fits the context, or that a grammar is one, no
# schema says); and of uploads, that wrong values are refused: forms are text, where a wrong one may look right.
_SETTINGS = """
[checks]
positive_data_acceptance.enabled = false
ignored_auth.enabled = false

[[operations]]
include-path = "/v1/files"
checks.negative_data_rejection.enabled = false
"""
FEW_TOKENS = 4
_HOOKS = '''
import json
import os
import random
import schemathesis

KEPT = {
    *("model", "messages", "prompt", "input", "inputs", "tokens", "max_tokens", "name", "content"),
    *("input_prefix", "input_suffix", "input_file_id", "endpoint", "completion_window"),
}
MODEL, FEW = os.environ["CHECKED_MODEL"], int(os.environ["FEW_TOKENS"])

@schemathesis.hook
def before_call(context, case, kwargs):
    """Bodies that are to be fine name the model, and have few parameters and tokens: so that answers are seen, too."""
    body = case.body
    mode = getattr(getattr(getattr(case, "meta", None), "generation", None), "mode", None)
    if not isinstance(body, dict) or mode is not schemathesis.GenerationMode.POSITIVE:
        return
    draw = random.Random(json.dumps(body, sort_keys=True, default=repr))
    wanted = draw.randrange(6)
    extra = sorted(name for name in body if name not in KEPT)
    for name in draw.sample(extra, max(0, len(extra) - wanted)):
        del body[name]
    for name in ("model", "name"):
        if isinstance(body.get(name), str) and draw.randrange(10):
            body[name] = MODEL
    if body.get("stream_options") is not None:
        body["stream"] = True
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int) and not 0 < body[name] <= 64:
            body[name] = FEW
    path = case.operation.path
    if path.startswith("/v1/") and ("messages" in body or "prompt" in body):
        body.setdefault("max_tokens", FEW)
    if path in ("/completion", "/infill"):
        body.setdefault("n_predict", FEW)
    if path == "/v1/responses":
        body.setdefault("max_output_tokens", FEW)
    if path.startswith("/api/") and "stream" not in body and path in ("/api/chat", "/api/generate"):
        body["options"] = {"num_predict": FEW}
    if path in ("/", "/generate", "/generate_stream") and not body.get("parameters"):
        body["parameters"] = {"max_new_tokens": FEW}
    for name in ("n", "best_of"):
        if isinstance(body.get(name), int) and body[name] > 4:
            body[name] = 4
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="random ones, about how many in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="of a running server; None: one is started")
    parser.add_argument(
        "--phases", default="coverage,fuzzing", help="coverage: each keyword's borders; fuzzing: --cases"
    )
    parser.add_argument("--slowest", type=float, default=30.0, help="seconds for an answer; more is a hang")
    parser.add_argument("--only", help="a regular expression for paths")
    arguments = parser.parse_args()
    if arguments.url:
        return check(arguments.url.rstrip("/"), arguments)
    with tempfile.TemporaryDirectory() as folder:
        filters = Path(folder, "filters.yaml")
        filters.write_text("filters:\n  - {name: rude, words: [damn], action: flag}\n", encoding="utf-8")
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "tokentrail", "serve", "--port", "0", "--max-model-len", "160"),
                *("--max-num-seqs", "8", "--kv-cache-memory", "100MiB", "--no-log-requests"),
                *("--files-dir", str(Path(folder, "files")), "--responses-store", "100"),
                *("--config", str(filters)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if " at http://" in line:
                    return check(line.split(" at ")[1].strip().removesuffix("/v1"), arguments)
            return 1
        finally:
            server.terminate()
            server.wait(60)


def check(url: str, arguments: argparse.Namespace) -> int:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=arguments.slowest) as response:
        document: dict[str, Any] = json.load(response)
    with urllib.request.urlopen(f"{url}/v1/models", timeout=arguments.slowest) as response:
        model = json.load(response)["data"][0]["id"]
    operations = sum(len(methods) for methods in document["paths"].values())
    each = max(1, arguments.cases // operations)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokentrail_hooks.py").write_text(_HOOKS)
        Path(folder, "schemathesis.toml").write_text(_SETTINGS)
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "SCHEMATHESIS_HOOKS": "tokentrail_hooks",
            "CHECKED_MODEL": model,
            "FEW_TOKENS": str(FEW_TOKENS),
        }
        only = ["--include-path-regex", arguments.only] if arguments.only else []
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            *("--phases", arguments.phases, "--mode", "all", "--continue-on-failure"),
            *("--max-examples", str(each), "--seed", str(arguments.seed)),
            *(
                "--request-timeout",
                str(arguments.slowest),
                "--suppress-health-check",
                "all",
                "--warnings",
                "off",
            ),
            *("--generation-database", "none", *only),
        ]
        return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
