"""What filters cost: µs per KB of clean text with a list of 100,000 words, and µs per token of a stream.

python benchmarks/filters.py
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
from collections.abc import Callable

from tokentrail.gateway.filters import Action, Finder, Pattern, Personal, Rule, StreamFilter, WordList, find

ENGLISH = "The quick brown fox jumps over the lazy dog, and then it rests near the river's bank - 42 times. "
TOKENS = re.findall(r"\s?\S+", ENGLISH * 5)
CHINESE = "今天的天气很好，我们一起去公园散步，然后再回家做饭。"


def words(count: int) -> list[str]:
    random.seed(1)
    latin = [
        "".join(random.choices(string.ascii_lowercase, k=random.randint(4, 12)))
        for _ in range(count * 6 // 10)
    ]
    wide = [
        "".join(chr(random.randint(0x4E00, 0x9FA5)) for _ in range(random.randint(2, 6)))
        for _ in range(count * 4 // 10)
    ]
    return latin + wide


def best(work: Callable[[], object], times: int) -> float:
    """µs of one call, the best of ten runs."""
    work()
    found = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(times):
            work()
        found.append((time.perf_counter() - start) / times * 1e6)
    return min(found)


def stream(finder: Finder) -> None:
    filtering = StreamFilter([Rule("r", finder, Action.MASK)])
    for token in TOKENS:
        filtering.push(token)
    filtering.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=100_000)
    count = parser.parse_args().words
    start = time.perf_counter()
    listed = WordList(words(count))
    print(f"list of {len(listed)} words: built in {time.perf_counter() - start:.1f} s\n")
    finders: dict[str, Finder] = {
        "words": listed,
        "personal data": Personal(),
        "pattern": Pattern(r"PROJECT-[0-9]{4,8}"),
    }
    print("| rule | English, µs/KB | Chinese, µs/KB | mixed, µs/KB | stream, µs/token |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, finder in finders.items():
        costs = []
        for text in (ENGLISH, CHINESE, ENGLISH + CHINESE):
            kilobyte = (text * 20).encode()[:1024].decode(errors="ignore")
            costs.append(best(lambda t=kilobyte, f=finder: find(f, t), 100))  # type: ignore[misc]
        costs.append(best(lambda f=finder: stream(f), 3) / len(TOKENS))  # type: ignore[misc]
        print(f"| {name} | {' | '.join(f'{cost:.0f}' for cost in costs)} |")


if __name__ == "__main__":
    main()
