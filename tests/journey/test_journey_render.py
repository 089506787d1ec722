"""The drawing of a journey holds what the journey says, from a view and from the JSON of the server alike."""

from __future__ import annotations

import io

import msgspec
from journey_samples import Clock, begin, delta, drafted, run_one, share
from rich.console import Console

from tokentrail.journey import JourneyStore
from tokentrail.journey.render import render
from tokentrail.protocol import TokenAlternatives


def drawn(journey: object, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(journey))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_view_and_its_json_are_drawn_alike() -> None:
    store = JourneyStore()
    run_one(store, prompt=40, tokens=50)
    view = store.view("a")
    text = drawn(view)
    assert text == drawn(msgspec.json.decode(msgspec.json.encode(view)))
    for part in (
        "40 (8 cached) → 50 tokens",
        "template",
        "tokenize",
        "queue",
        "steps 3–51",
        "8 cached",
        "stop",
    ):
        assert part in text
    assert text.count("prefill") == 2
    assert "perplexity" in text
    for width in (60, 80, 120):
        narrow = drawn(view, width)
        assert max(map(len, narrow.splitlines())) <= width
        for part in ("tokenize", "prefill", "decode", "start", "time"):
            assert part in narrow
    assert "batch" not in text  # it was alone in every step
    rows = len(drawn(view, 1000).splitlines())
    assert len(drawn(view, 80).splitlines()) == rows, "a line was broken in a common terminal"


def test_texts_and_alternatives_are_drawn_when_kept() -> None:
    store = JourneyStore(keep_text=True)
    journey = begin(store)
    journey.token_text = {1: "[bold]Paris", 2: " London"}.__getitem__
    journey.add_sequence("a-0", prompt_tokens=4)
    top = [TokenAlternatives(token_ids=[1, 2], logprobs=[-0.1, -2.0])]
    store.on_step(Clock().record(share("a-0", 4, 0)), [delta("a-0", 1, top=top)])
    journey.end("stop")
    text = drawn(store.view("a"))
    assert "[bold]Paris" in text  # not taken for markup
    assert "' London' 14%" in text


def test_drafts_are_counted_in_the_row_of_their_steps() -> None:
    store = JourneyStore()
    journey = begin(store)
    journey.add_sequence("a-0", prompt_tokens=4)
    clock = Clock()
    store.on_step(clock.record(share("a-0", 4, 0)), [delta("a-0", 1)])
    store.on_step(clock.record(drafted("a-0", 4, 5, 2)), [delta("a-0", 2)])
    store.on_step(clock.record(drafted("a-0", 7, 3, 3)), [delta("a-0", 3)])
    store.on_step(clock.record(share("a-0", 1, 11)), [delta("a-0", 4)])
    journey.end("stop")
    assert "steps 2–4 · 8 tokens · 5 of 8 drafts right" in drawn(store.view("a"))


def test_every_stage_of_a_journey_can_be_drawn() -> None:
    store = JourneyStore()
    journey = begin(store)
    assert "still running" in drawn(store.view("a"))
    journey.template_done(2000, template_seconds=None, tokenize_seconds=0.0)
    assert "tokenize" in drawn(store.view("a"))
    sequences = [journey.add_sequence(f"a-{k}", prompt_tokens=2000) for k in range(2)]
    assert "2000 → 0 tokens" in drawn(store.view("a"))
    clock = Clock()
    for k in range(20):
        store.on_step(clock.record(*[share(s.id, 100, 100 * k) for s in sequences]), [])
    store.on_step(clock.record(preempted=["a-1"]), [])
    store.on_resume(["a-0"])
    text = drawn(store.view("a"))
    assert text.count("steps 1–20") == 2  # many chunks share a line
    assert "preempted [1]" in text
    assert "resumed [0]" in text
    journey.end("error")
    assert "ended by error" in drawn(store.view("a"))
