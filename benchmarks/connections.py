"""What connections that do nothing cost those that work: throughput of active clients, alone and beside many others.

    python benchmarks/connections.py --active 32 --others 900

A third of the others has connected and says nothing, a third rests after a request, and a third sends a request's
headers, a byte a second. They are there in every second turn. The clients share the machine with the server.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import selectors
import socket
import statistics
import time
from multiprocessing.connection import Connection

from processes import free_port, server, tokentrail
from server_overhead import cpu_seconds

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TRICKLE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"x" * 10_000


def hold(port: int, count: int, orders: Connection) -> None:
    """A process of its own: `count` connections from one order to the next, then none, and so on."""
    while orders.recv():
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        resting, slow = held[count // 3 : 2 * count // 3], held[2 * count // 3 :]
        for one in resting:
            one.sendall(HEALTH)
        for one in resting:
            one.recv(4096)
        orders.send(True)
        at = 0
        while not orders.poll(1.0):
            for one in slow:
                one.sendall(TRICKLE[at : at + 1])
            at += 1
        orders.recv()
        for one in held:
            one.settimeout(0.0)
            try:
                if one.recv(4096) == b"":
                    raise SystemExit("the server closed a connection that should have stayed")
            except BlockingIOError:
                pass
            one.close()
        orders.send(True)


class Clients:
    """Active clients: each streams one completion after another, over one connection."""

    def __init__(self, port: int, count: int, tokens: int) -> None:
        body = {"prompt": "Once upon a time, in a garden by the river,", "max_tokens": tokens, "stream": True,
                "ignore_eos": True, "model": "m"}  # fmt: skip
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(self._request)
            self._selector.register(connection, selectors.EVENT_READ)

    def run(self, seconds: float) -> int:
        """Events received in so many seconds; each has a token."""
        events, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in self._selector.select(0.1):
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not data:
                    raise SystemExit("the server closed an active connection")
                events += data.count(b"data: {")
                if b"[DONE]" in data:
                    key.fileobj.sendall(self._request)  # type: ignore[union-attr]
        return events


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput beside many idle or slow connections.")
    parser.add_argument("--model", help="GGUF file; default: the demo model")
    parser.add_argument("--active", type=int, default=32)
    parser.add_argument("--others", type=int, default=900)
    parser.add_argument("--turns", type=int, default=8, help="of each kind")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a turn")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, arguments.others + 1000), hard))
    port = free_port()
    command = tokentrail("serve", "--port", port, "--served-model-name", "m", "--no-log-requests",
                         "--max-num-seqs", arguments.active, "--max-model-len", 2048)  # fmt: skip
    if arguments.model:
        command += ["--model", arguments.model]
    with server(command, f"http://127.0.0.1:{port}") as process:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        holder = multiprocessing.get_context("spawn").Process(
            target=hold, args=(port, arguments.others, theirs), daemon=True
        )
        holder.start()
        clients = Clients(port, arguments.active, 128)
        clients.run(3.0)
        rates: dict[int, list[float]] = {0: [], arguments.others: []}
        spent: dict[int, float] = dict.fromkeys(rates, 0.0)
        for _ in range(arguments.turns):
            for others, turns in rates.items():
                if others:
                    ours.send(True)
                    while not ours.poll():
                        clients.run(0.2)
                    ours.recv()
                before = cpu_seconds(process.pid)
                turns.append(clients.run(arguments.seconds) / arguments.seconds)
                spent[others] += cpu_seconds(process.pid) - before
                if others:
                    ours.send(True)
                    while not ours.poll():
                        clients.run(0.2)
                    ours.recv()
        ours.send(False)
        holder.join(10)
    print(f"{arguments.active} active clients, turns of {arguments.seconds:g} s on "
          f"{len(os.sched_getaffinity(0))} cores, limit on open files {soft}")  # fmt: skip
    print(f"{'other connections':>18}{'tokens/s, median':>18}  {'each turn':<40}{'API process, CPU':>18}")
    for others, each in rates.items():
        share = spent[others] / (arguments.seconds * arguments.turns)
        shown = " ".join(f"{rate:.0f}" for rate in each)
        print(f"{others:>18}{statistics.median(each):>18.0f}  {shown:<40}{share:>17.1%}")
    alone, beside = (statistics.median(each) for each in rates.values())
    print(f"beside {arguments.others} others, throughput is {beside / alone - 1:+.1%}")


if __name__ == "__main__":
    main()
