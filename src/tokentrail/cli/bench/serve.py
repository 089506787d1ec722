"""`tokentrail bench serve`: load on any OpenAI-compatible server, and what its users would feel."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import bearer, takes_options
from tokentrail.cli.units import Lengths, parse_lengths, read_flag
from tokentrail.protocol.errors import TokentrailError

if TYPE_CHECKING:
    from tokentrail.cli.bench.load import Answer, LoadClient

LOAD = "Load"
PROMPTS = "Prompts"

# Common English words, which most vocabularies hold as one token with the space before it.
_WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head
house service friend father power hour game line end member law car city community name team minute
idea body back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher
"""


@dataclass(frozen=True)
class LoadOptions:
    """What `bench serve` sends, and how fast."""

    url: Annotated[str, typer.Option("--url", "--base-url", help="Server, with or without /v1.")] = (
        "http://127.0.0.1:8000"
    )
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model name to ask for. Left out: the server's first.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="TOKENTRAIL_API_KEY", show_envvar=True, help="Key to send."),
    ] = None
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=1, help="Requests to send.", rich_help_panel=LOAD)
    ] = 100
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "--max-concurrency",
            min=1,
            help="Requests under way at most: each one that ends starts the next (closed loop).",
            rich_help_panel=LOAD,
        ),
    ] = None
    request_rate: Annotated[
        float,
        typer.Option(
            "--request-rate",
            help="Requests per second, arriving as a Poisson process (open loop); inf: all at once.",
            rich_help_panel=LOAD,
        ),
    ] = math.inf
    warmup: Annotated[
        int,
        typer.Option(
            "--warmup",
            min=0,
            help="Requests sent before, one by one, that don't count.",
            rich_help_panel=LOAD,
        ),
    ] = 1
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, help="Seconds until a request counts as failed.", rich_help_panel=LOAD
        ),
    ] = 600.0
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="completions or chat.", rich_help_panel=PROMPTS)
    ] = "completions"
    prompts: Annotated[
        str,
        typer.Option(
            "--prompts",
            help="ids: random token ids, exact in length (completions only); "
            "text: random English words, about one token each.",
            rich_help_panel=PROMPTS,
        ),
    ] = "auto"
    input_len: Annotated[
        str,
        typer.Option(
            "--random-input-len",
            metavar="N|LOW-HIGH",
            help="Prompt tokens, evenly drawn from a range.",
            rich_help_panel=PROMPTS,
        ),
    ] = "128"
    output_len: Annotated[
        str,
        typer.Option(
            "--random-output-len",
            metavar="N|LOW-HIGH",
            help="Tokens to generate at most, evenly drawn from a range.",
            rich_help_panel=PROMPTS,
        ),
    ] = "64"
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", min=301, help="Random ids stay below.", rich_help_panel=PROMPTS)
    ] = 32000
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Ask for answers of the full length. Tokentrail, vLLM and llama.cpp know this field; "
            "OpenAI refuses it.",
            rich_help_panel=PROMPTS,
        ),
    ] = False
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, max=2.0, rich_help_panel=PROMPTS)
    ] = 0.0
    seed: Annotated[
        int, typer.Option("--seed", help="Of lengths, prompts and arrivals.", rich_help_panel=PROMPTS)
    ] = 0
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Don't check the server's TLS certificate.")
    ] = False
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write everything measured as JSON.")
    ] = None

    @property
    def input_lengths(self) -> Lengths:
        return read_flag("--random-input-len", self.input_len, parse_lengths)

    @property
    def output_lengths(self) -> Lengths:
        return read_flag("--random-output-len", self.output_len, parse_lengths)

    def check(self) -> None:
        if self.endpoint not in ("completions", "chat"):
            raise typer.BadParameter(f"{self.endpoint!r} is not completions or chat", param_hint="--endpoint")
        if self.prompts not in ("auto", "ids", "text"):
            raise typer.BadParameter(f"{self.prompts!r} is not ids or text", param_hint="--prompts")
        if self.prompts == "ids" and self.endpoint == "chat":
            raise typer.BadParameter("chat takes text, not token ids", param_hint="--prompts")
        if not self.request_rate > 0:
            raise typer.BadParameter(
                f"{self.request_rate:g} is not a rate above 0", param_hint="--request-rate"
            )
        _ = self.input_lengths, self.output_lengths


@dataclass
class Measured:
    """A finished run."""

    seconds: float
    answers: list[Answer]
    failures: Counter[str]
    peak: int
    """Requests under way at once, at most."""


def make_bodies(options: LoadOptions, model: str, count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Request bodies, all different."""
    inputs, outputs = options.input_lengths, options.output_lengths
    bodies = []
    for _ in range(count):
        length = rng.randint(inputs.low, inputs.high)
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": rng.randint(outputs.low, outputs.high),
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.ignore_eos:
            body["ignore_eos"] = True
        if options.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": _random_text(length, rng)}]
        elif options.prompts == "text":
            body["prompt"] = _random_text(length, rng)
        else:
            from tokentrail.cli.bench.report import random_token_ids

            body["prompt"] = random_token_ids(length, options.vocab_size, rng)
        bodies.append(body)
    return bodies


def _random_text(words: int, rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS.split(), k=words))


async def run_load(
    client: LoadClient, options: LoadOptions, bodies: list[dict[str, Any]], progress: Any
) -> Measured:
    """Send `bodies` as `options` says, and wait for all answers."""
    from tokentrail.cli.bench.load import RequestFailed

    path = "chat/completions" if options.endpoint == "chat" else "completions"
    answers: list[Answer] = []
    failures: Counter[str] = Counter()
    free = asyncio.Semaphore(options.concurrency or len(bodies))
    running = peak = 0

    async def send(body: dict[str, Any], due: float | None) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            answers.append(await client.stream(path, body, started=due))
        except RequestFailed as error:
            failures[str(error)] += 1
        finally:
            running -= 1
            free.release()
            progress(len(answers), sum(failures.values()))

    rng = random.Random(options.seed + 1)
    tasks: list[asyncio.Task[None]] = []
    start = time.perf_counter()
    async for due in _arrivals(len(bodies), options.request_rate, start, rng):
        await free.acquire()
        # An open loop counts from when the request was due: a server that stalls must not look better for it.
        tasks.append(
            asyncio.create_task(
                send(bodies[len(tasks)], due if math.isfinite(options.request_rate) else None)
            )
        )
    await asyncio.gather(*tasks)
    return Measured(time.perf_counter() - start, answers, failures, peak)


async def _arrivals(count: int, rate: float, start: float, rng: random.Random) -> AsyncIterator[float]:
    """Times (`perf_counter`) at which requests are due, each yielded when it has come."""
    due = start
    for index in range(count):
        if math.isfinite(rate) and index:
            due += rng.expovariate(rate)
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
        yield due


def summarize(options: LoadOptions, model: str, url: str, run: Measured) -> dict[str, Any]:
    """Everything measured, as the JSON file holds it. Times in seconds."""
    from tokentrail.cli.bench.report import Summary

    answers = run.answers
    output_tokens = sum(answer.output_tokens for answer in answers)
    input_tokens = sum(answer.prompt_tokens for answer in answers)
    return {
        "url": url,
        "model": model,
        "endpoint": options.endpoint,
        "num_prompts": options.num_prompts,
        "concurrency": options.concurrency,
        "request_rate": options.request_rate if math.isfinite(options.request_rate) else None,
        "random_input_len": options.input_len,
        "random_output_len": options.output_len,
        "ignore_eos": options.ignore_eos,
        "seed": options.seed,
        "duration": run.seconds,
        "completed": len(answers),
        "failed": sum(run.failures.values()),
        "failures": dict(run.failures.most_common()),
        "peak_concurrency": run.peak,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "request_throughput": len(answers) / run.seconds,
        "output_throughput": output_tokens / run.seconds,
        "total_token_throughput": (input_tokens + output_tokens) / run.seconds,
        "ttft": Summary([answer.ttft for answer in answers]),
        "tpot": Summary([answer.tpot for answer in answers if answer.tpot is not None]),
        "itl": Summary([gap for answer in answers for gap in answer.gaps]),
        "e2el": Summary([answer.seconds for answer in answers]),
        "requests": [
            {
                "ttft": answer.ttft,
                "tpot": answer.tpot,
                "e2el": answer.seconds,
                "input_tokens": answer.prompt_tokens,
                "output_tokens": answer.output_tokens,
            }
            for answer in answers
        ],
    }


def print_result(result: dict[str, Any]) -> None:
    from tokentrail.cli.bench.report import print_report

    facts = [
        ("server", f"{result['url']} ({result['model']})"),
        (
            "requests",
            f"{result['completed']} completed, {result['failed']} failed, "
            f"{result['peak_concurrency']} at once at most",
        ),
        ("duration", f"{result['duration']:.2f} s"),
        ("tokens", f"{result['input_tokens']} in, {result['output_tokens']} out"),
        (
            "throughput",
            f"{result['request_throughput']:.2f} requests/s, "
            f"{result['output_throughput']:.1f} output tokens/s, "
            f"{result['total_token_throughput']:.1f} tokens/s in all",
        ),
    ]
    facts += [("failed", f"{count} × {reason}") for reason, count in result["failures"].items()]
    rows = [
        ("time to first token (TTFT)", result["ttft"]),
        ("time per output token (TPOT)", result["tpot"]),
        ("inter-token latency (ITL)", result["itl"]),
        ("end to end (E2EL)", result["e2el"]),
    ]
    print_report("bench serve", facts, rows)


def _first_model(url: str, headers: dict[str, str], insecure: bool) -> str:
    import httpx

    try:
        response = httpx.get(f"{url}/models", headers=headers, verify=not insecure, timeout=30)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise TokentrailError(
            f"can't ask {url}/models for a model name ({error}); is the server up? --model names one."
        ) from None


@takes_options
def serve(load: LoadOptions) -> None:
    """Load an OpenAI-compatible server; measure latency and throughput."""
    from tokentrail.cli.bench.load import Endpoint, LoadClient, RequestFailed
    from tokentrail.cli.bench.report import progress_bar, write_json

    load.check()
    headers = bearer(load.api_key)
    try:
        endpoint = Endpoint.parse(load.url, headers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    model = load.model or _first_model(endpoint.url, headers, load.insecure)
    rng = random.Random(load.seed)
    bodies = make_bodies(load, model, load.warmup + load.num_prompts, rng)

    async def run() -> Measured:
        client = LoadClient(endpoint, timeout=load.timeout, insecure=load.insecure)
        path = "chat/completions" if load.endpoint == "chat" else "completions"
        try:
            for body in bodies[: load.warmup]:
                await client.stream(path, body)
        except RequestFailed as error:
            raise TokentrailError(f"the warm-up request failed: {error}") from None
        with progress_bar() as bar:
            task = bar.add_task("requests", total=load.num_prompts, detail="")

            def show(completed: int, failed: int) -> None:
                bar.update(task, completed=completed + failed, detail=f"{failed} failed" if failed else "")

            try:
                return await run_load(client, load, bodies[load.warmup :], show)
            finally:
                client.close()

    result = summarize(load, model, endpoint.url, _run(run()))
    print_result(result)
    if load.output is not None:
        write_json(load.output, result)
    if result["failed"]:
        raise TokentrailError(f"{result['failed']} of {load.num_prompts} requests failed.")


def _run(main: Any) -> Measured:
    try:
        import uvloop
    except ImportError:
        result: Measured = asyncio.run(main)
    else:
        result = uvloop.run(main)
    return result


def register(group: typer.Typer) -> None:
    group.command(cls=Command)(serve)
