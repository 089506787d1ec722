"""Cold start: seconds from starting `tokentrail serve` to the first token over HTTP.

    python benchmarks/cold_start.py --repeat 5

The request is sent as soon as the server's port takes connections and repeated until it is answered with 200,
as an impatient client would. The file is in the page cache from the first turn on.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from processes import free_port, tokentrail


def first_token(port: int, deadline: float) -> float:
    """Wall clock (`perf_counter`) of the first streamed text."""
    body = json.dumps({"model": "m", "prompt": "The capital of France is", "max_tokens": 1, "stream": True})
    while time.perf_counter() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                while line := response.readline():
                    if line.startswith(b"data: {"):
                        return time.perf_counter()
                sys.exit("the stream ended without a token")
            response.read()
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.005)
    sys.exit("the server did not answer in time")


def main() -> None:
    parser = argparse.ArgumentParser(description="Process start to first token over HTTP.")
    parser.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    results = []
    for turn in range(arguments.repeat):
        port = free_port()
        command = tokentrail("serve", "--port", port, "--served-model-name", "m", "--no-log-requests")
        if arguments.model:
            command += ["--model", str(arguments.model)]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        try:
            results.append(first_token(port, start + 60) - start)
        finally:
            process.terminate()
            process.wait(timeout=40)
        print(f"turn {turn + 1}: {results[-1]:.2f} s", flush=True)
    print(f"median {statistics.median(results):.2f} s, worst {max(results):.2f} s")


if __name__ == "__main__":
    main()
