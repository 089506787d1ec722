"""What serving costs beside the engine: CPU time of the API process per token streamed.

    python benchmarks/server_overhead.py --streams 64 [--config deploy.yaml]

The engine behind it computes nothing; each of its steps takes 20 ms, like a decode step of many sequences.
What is measured is all the rest: messages from the engine, journeys, metrics, detokenization, JSON, HTTP,
system calls.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokentrail.engine.batch import Batch, SampledRows
    from tokentrail.engine.config import EngineConfig


class IdleRunner:
    """Draws a few ordinary tokens of the demo model's vocabulary in turn."""

    pause = 0.02
    """Seconds that a step takes."""

    def __init__(self, config: EngineConfig, *, progress: object = None) -> None:
        from tokentrail.protocol import EngineInfo

        self.max_logit_rows = config.max_num_seqs + 16
        self.draft = None
        self.info = EngineInfo(
            architecture="idle",
            num_parameters=0,
            max_model_len=8192,
            vocab_size=49152,
            block_size=config.block_size,
            num_blocks=1_000_000 // config.block_size,
            kv_bytes_per_token=0,
            weight_bytes=0,
            eos_token_ids=[2],
            fingerprint="idle",
            isa="none",
            threads=1,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self._steps = 0

    def execute(self, batch: Batch) -> SampledRows:
        from tokentrail.engine.batch import SampledRows

        time.sleep(self.pause)
        self._steps += 1
        rows = len(batch.logit_rows)
        width = int(batch.sampling.num_top.max(initial=0))
        return SampledRows(
            tokens=np.full(rows, 500 + self._steps % 7, np.int32),
            logprobs=np.full(rows, -0.5, np.float32),
            top_tokens=np.tile(np.arange(600, 600 + width, dtype=np.int32), (rows, 1)) if width else None,
            top_logprobs=np.full((rows, width), -1.5, np.float32) if width else None,
        )

    def close(self) -> None:
        pass


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream(port: int, streams: int, tokens: int, more: dict[str, Any]) -> int:
    """Run `streams` chats at once; returns the events they brought."""
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
            "max_tokens": tokens,
            **more,
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ)
    events = 0
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            events += data.count(b"data: ")
            if not data or b"[DONE]" in data:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    return events


def main() -> None:
    from processes import free_port, server, tokentrail

    parser = argparse.ArgumentParser(description="CPU time of the API process per streamed token.")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--config", help="A deployment file: what it turns on is measured too.")
    arguments = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    os.environ["TOKENTRAIL_RUNNER"] = "server_overhead:IdleRunner"
    port = free_port()
    command = tokentrail(
        "serve", "--port", str(port), "--served-model-name", "m", "--no-log-requests", "--max-num-seqs", "128"
    )
    if arguments.config is not None:
        command += ["--config", arguments.config]
    with server(command, f"http://127.0.0.1:{port}") as process:
        stream(port, 4, 20, {})
        for name, more in (("plain", {}), ("5 log-probabilities", {"logprobs": True, "top_logprobs": 5})):
            before = cpu_seconds(process.pid)
            events = stream(port, arguments.streams, arguments.tokens, more)
            made = arguments.streams * arguments.tokens
            spent = cpu_seconds(process.pid) - before
            print(
                f"{name:20} {spent / made * 1e6:6.1f} µs of CPU per token, {events} events, {arguments.streams} streams"
            )


if __name__ == "__main__":
    sys.exit(main())
