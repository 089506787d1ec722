"""A batch outlives its server: killed amid it, nothing is lost and nothing is there twice."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from real_server import RealServer

ENGINE = {"max_model_len": 256, "kv_cache_memory": 64 << 20, "max_num_seqs": 8}
COUNT = 20


def body(server: RealServer, number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Count from {number} on. 数数 🎉"}]
    return {"model": server.model, "messages": messages, "max_tokens": 8, "temperature": 0.8, "seed": number}


def test_kill_and_go_on(tmp_path: Path) -> None:
    options: Any = {"files_dir": str(tmp_path), "batch_concurrency": 4, "engine": ENGINE}
    server = RealServer(**options)
    client = server.client()
    lines = [
        {"custom_id": f"№ {n}", "method": "POST", "url": "/v1/chat/completions", "body": body(server, n)}
        for n in range(COUNT)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while (done := client.batches.retrieve(batch.id).request_counts.completed) < 3:
        time.sleep(0.01)
    assert done < COUNT, "the batch was over before the server could be killed"
    server.end(signal.SIGKILL)
    server = RealServer(**options)
    client = server.client()
    assert client.batches.retrieve(batch.id).request_counts.completed >= done
    # Live requests go first, and the batch goes on beside them.
    direct = client.chat.completions.create(**body(server, 3))
    end = time.monotonic() + 60
    while (finished := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < end, finished
        time.sleep(0.05)
    assert (finished.request_counts.completed, finished.request_counts.failed) == (COUNT, 0)
    assert finished.error_file_id is None
    results = [json.loads(line) for line in client.files.content(finished.output_file_id).text.splitlines()]
    assert [result["custom_id"] for result in results] == [f"№ {n}" for n in range(COUNT)]
    message = results[3]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == direct.choices[0].message.content
    status, log = server.end()
    assert status == 0, log
    assert "internal error" not in log
