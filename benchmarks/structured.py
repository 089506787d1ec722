"""What grammars cost a step: decode steps of the same requests with a JSON schema and without one, in turn.

    python benchmarks/structured.py [--model FILE] [--batch 32] [--tokens 96] [--turns 3]

Every answer is a list of texts, so that masks are computed for open strings, where nearly all tokens are allowed; the
requests without a schema ignore ends, so that both decode as many tokens. Forced tokens are off: a step brings each
sequence one token in both. Then they are on, for a schema that leaves little choice: how many steps they save.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from tokentrail.answer.parts import load_text_parts
from tokentrail.engine import EngineConfig, LocalEngine
from tokentrail.engine.grammars import ForcedTokens
from tokentrail.protocol import GenerateRequest, SamplingParams, StepOutput, StructuredOutputsParams
from tokentrail.text.grammar import build_grammar

TEXTS: Any = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 100}
RECORDS: Any = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "identifier": {"type": "integer", "minimum": 0, "maximum": 99999},
            "temperature": {"type": "number", "minimum": 0, "maximum": 100},
            "description": {"enum": ["low", "medium", "high"]},
            "is_active": {"type": "boolean"},
        },
        "required": ["identifier", "temperature", "description", "is_active"],
        "additionalProperties": False,
    },
    "minItems": 100,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    tokenizer = load_text_parts(options.model).tokenizer
    prompt = tokenizer.encode("Some texts and numbers about rivers, written as JSON:\n")
    engine = LocalEngine(
        EngineConfig(model=options.model, max_num_seqs=options.batch, max_model_len=512, max_waiting=4096)
    )

    def run(schema: Any) -> list[StepOutput]:
        grammar = None if schema is None else build_grammar(StructuredOutputsParams(json=schema))
        requests = [
            GenerateRequest(
                id=str(number),
                group=str(number),
                prompt=[*prompt, 1000 + number],
                sampling=SamplingParams(seed=number, max_tokens=options.tokens, ignore_eos=True),
                grammar=grammar,
            )
            for number in range(options.batch)
        ]
        return [output for output in engine.generate(requests) if output.record.sequences]

    def times(steps: list[StepOutput]) -> tuple[float, float]:
        """Median milliseconds of a step that decodes for all, and of its sampling."""
        records = [step.record for step in steps if step.record.num_tokens == options.batch]
        return (
            statistics.median(record.end - record.start for record in records) * 1e3,
            statistics.median(record.end - record.forwarded for record in records) * 1e3,
        )

    extend = ForcedTokens.extend
    ForcedTokens.extend = lambda self, plan: None  # type: ignore[method-assign]
    run(TEXTS), run(None)
    free: list[tuple[float, float]] = []
    bound: list[tuple[float, float]] = []
    for _ in range(options.turns):
        free.append(times(run(None)))
        bound.append(times(run(TEXTS)))
    step, masked = (min(turn[0] for turn in turns) for turns in (free, bound))
    # The best of turns: what else the host does only ever adds.
    print(f"batch {options.batch}: {step:.2f} ms a step without a grammar, {masked:.2f} ms with one")
    print(f"  cost of grammars: {(masked / step - 1) * 100:+.1f} % of a step")
    print(f"  steps of each turn, without: {', '.join(f'{turn[0]:.2f}' for turn in free)} ms")
    print(f"  steps of each turn, with:    {', '.join(f'{turn[0]:.2f}' for turn in bound)} ms")
    one_by_one = run(RECORDS)
    ForcedTokens.extend = extend  # type: ignore[method-assign]
    together = run(RECORDS)
    assert _tokens(one_by_one) == _tokens(together), "forced tokens changed an answer"
    seconds = [sum(step.record.end - step.record.start for step in steps) for steps in (one_by_one, together)]
    print(
        f"forced tokens: {len(one_by_one)} steps in {seconds[0]:.2f} s one by one, "
        f"{len(together)} steps in {seconds[1]:.2f} s together"
    )


def _tokens(steps: list[StepOutput]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for step in steps:
        for delta in step.deltas:
            found.setdefault(delta.id, []).extend(delta.token_ids)
    return found


if __name__ == "__main__":
    main()
