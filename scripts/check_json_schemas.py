"""Ask the demo model for answers to many random JSON schemas, and validate each finished one with `jsonschema`.

    python scripts/check_json_schemas.py [COUNT]

Exits with 1 if a schema is refused, a finished answer does not validate, or too few finish.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from json_schemas import make_schema
from tokentrail import LLM, SamplingParams, StructuredOutputsParams

LONGEST = 400


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    schemas = [make_schema(number) for number in range(count)]
    question = [{"role": "user", "content": "Answer with some JSON."}]
    parameters = [
        SamplingParams(
            temperature=1.0,
            seed=number,
            max_tokens=LONGEST,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for number, schema in enumerate(schemas)
    ]
    started = time.perf_counter()
    with LLM(max_num_seqs=32, max_model_len=1024) as llm:
        outputs = llm.chat([question] * count, parameters)
    seconds = time.perf_counter() - started
    finished = wrong = 0
    for number, (schema, output) in enumerate(zip(schemas, outputs, strict=True)):
        answer = output.outputs[0]
        if answer.finish_reason != "stop":
            continue
        finished += 1
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
        except (ValueError, jsonschema.ValidationError) as error:
            wrong += 1
            print(f"schema {number}: {answer.text!r}: {str(error).splitlines()[0]}")
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(
        f"{count} schemas, {tokens} tokens in {seconds:.0f} s: {finished} finished, of which {wrong} are wrong"
    )
    return int(wrong > 0 or finished < 0.7 * count)


if __name__ == "__main__":
    sys.exit(main())
