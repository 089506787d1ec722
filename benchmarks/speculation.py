"""What speculative decoding gains: output tokens per second with and without it, on the same requests.

    python benchmarks/speculation.py
    python benchmarks/speculation.py --model big.gguf --speculative-model small.gguf

Tasks whose answers repeat their prompt (a copy, an edit of code, a summary) or themselves (JSON), and one whose answer
does neither, so that what speculation costs where it does not help shows too. Both engines answer the same requests in
turn, and every answer is compared: speculation must not change a token. Prompts are in the prefix cache in all timed
turns. With `--batches 1,8` a task's requests are answered eight at a time too, each a little different.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from tokentrail import LLM, SamplingParams

CODE = '''class Account:
    """A bank account with a balance in cents."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
'''
TEXT = (
    "The Danube rises in the Black Forest of Germany and flows for 2,850 kilometres to the Black Sea. It passes "
    "through or touches ten countries, more than any other river in the world. Four capitals stand on its banks: "
    "Vienna, Bratislava, Budapest and Belgrade. Since 1992 a canal has joined it with the Main and so with the Rhine, "
    "so that ships can travel from the North Sea to the Black Sea. Its delta in Romania and Ukraine is the second "
    "largest in Europe, and home to more than 300 species of birds."
)


@dataclass(frozen=True)
class Task:
    name: str
    prompt: str
    chat: bool
    tokens: int = 128

    def several(self, count: int) -> list[str]:
        """The prompt, and others that differ from it at their beginning, so that no cache makes them one."""
        return [self.prompt if i == 0 else f"({i}) {self.prompt}" for i in range(count)]


TASKS = (
    Task("copy of a text", f"{TEXT}\n\nThe same text once more:\n\n", chat=False),
    Task("edit of code", f"{CODE}\n\n# The same class, with a method transfer:\n\n{CODE[:50]}", chat=False),
    Task("summary", f"Summarize this text in its own words:\n\n{TEXT}", chat=True),
    Task(
        "answers in JSON",
        "Write a JSON list of ten people, each with name, age, city and country.",
        chat=True,
    ),
    Task("free text", "Tell me a story about a dragon who is afraid of heights.", chat=True),
)


@dataclass
class Result:
    tokens_per_second: float
    answers: list[list[int]]
    steps: int
    drafted: int
    accepted: int


def run(llm: LLM, task: Task, count: int, temperature: float) -> Result:
    sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=task.tokens, ignore_eos=True)
    prompts = task.several(count)
    start = time.perf_counter()
    if task.chat:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        outputs = llm.chat(conversations, sampling, use_tqdm=False)
    else:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    answers = [output.outputs[0].token_ids for output in outputs]
    journeys = [journey for output in outputs if (journey := llm.journey(output.request_id)) is not None]
    steps = {step.step for journey in journeys for one in journey.sequences for step in one.steps}
    return Result(
        sum(map(len, answers)) / seconds,
        answers,
        len(steps),
        sum(journey.drafted_tokens for journey in journeys),
        sum(journey.accepted_tokens for journey in journeys),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Output tokens per second with and without speculation.")
    parser.add_argument("--model", help="GGUF file; default: the demo model")
    parser.add_argument("--speculative-model", default="ngram", help="ngram, or a draft model's GGUF file")
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batches", default="1", help="requests at a time, such as 1,8,32")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each engine; the best counts")
    parser.add_argument("--task", action="append", help="only the tasks whose name holds this; repeatable")
    arguments = parser.parse_args()
    batches = [int(size) for size in arguments.batches.split(",")]
    settings = {"model": arguments.model, "threads": arguments.threads, "max_model_len": 1024}
    plain = LLM(**settings)
    speculating = LLM(
        **settings,
        speculative_model=arguments.speculative_model,
        num_speculative_tokens=arguments.num_speculative_tokens,
    )
    print("| task | batch | plain, tokens/s | speculating | gain | tokens a step | drafts right |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for task in TASKS:
        if arguments.task and not any(word in task.name for word in arguments.task):
            continue
        for count in batches:
            turns: list[tuple[Result, Result]] = []
            for _ in range(1 + arguments.repeat):  # the first fills the caches
                before = run(plain, task, count, arguments.temperature)
                after = run(speculating, task, count, arguments.temperature)
                if before.answers != after.answers:
                    raise SystemExit(f"{task.name}: speculation changed an answer")
                turns.append((before, after))
            del turns[0]
            before_rate = max(before.tokens_per_second for before, _ in turns)
            after_rate = max(after.tokens_per_second for _, after in turns)
            last = turns[-1][1]
            tokens = sum(map(len, last.answers)) / count
            share = f"{last.accepted / last.drafted:.0%} of {last.drafted}" if last.drafted else "none made"
            print(
                f"| {task.name} | {count} | {before_rate:.0f} | {after_rate:.0f} | "
                f"{after_rate / before_rate:.2f} × | {tokens / last.steps:.2f} | {share} |",
                flush=True,
            )
    plain.close()
    speculating.close()


if __name__ == "__main__":
    main()
