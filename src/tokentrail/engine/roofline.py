"""How fast a step could be: what it has to read and multiply, under the two roofs that the machine sets.

The roofline model (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785), over a recorded program.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tokentrail.ops.backend import KvLayout
from tokentrail.ops.native.machine import PEAK_OF_KV, peak_of_layout
from tokentrail.ops.program import Call, Linear, Program


@dataclass
class StepWork:
    """Bytes of weights and KV cache that a step reads, each once, and its multiply–accumulates by kind of product."""

    nbytes: float = 0.0
    macs: dict[str, float] = field(default_factory=dict)

    def multiply(self, peak: str, macs: float) -> None:
        self.macs[peak] = self.macs.get(peak, 0.0) + macs


def step_work(program: Program, kv: KvLayout, *, sequences: int, tokens: int, context: int) -> StepWork:
    """Of a step of `sequences` sequences that bring `tokens` new tokens each, behind `context` tokens in the cache.

    The program's matrices are `MatrixShape`s. One row of logits a sequence is computed.
    """
    work = StepWork()
    chosen = {call.output: call.params["chosen"] for call in program.calls if call.kernel == "route"}
    for call in program.calls:
        if call.kernel == "embedding":
            table = call.weights[0]
            work.nbytes += min(sequences * tokens, table.n) * table.nbytes / table.n
        elif call.kernel == "linear":
            assert call.output is not None
            rows = sequences if program.values[call.output].rows == "logits" else sequences * tokens
            _add_product(work, Linear(*call.weights), rows)
        elif call.kernel == "experts":
            count, each = len(call.weights), chosen.get(call.inputs[1], len(call.weights))
            rows = sequences * tokens
            # Tokens choose independently: an expert is read unless all of them have passed it over.
            read = 1 - (1 - each / count) ** rows
            for expert in call.weights:
                for layer in (expert.gate, expert.up, expert.down):
                    _add_product(work, layer, rows * each / count, read)
        elif call.kernel == "attention":
            _add_attention(work, call, kv, sequences, tokens, context)
    return work


def _add_product(work: StepWork, layer: Linear, rows: float, read: float = 1.0) -> None:
    weight = layer.weight
    work.nbytes += weight.nbytes * read
    work.multiply(peak_of_layout(weight.layout), rows * weight.n * weight.k)


def _add_attention(
    work: StepWork, call: Call, kv: KvLayout, sequences: int, tokens: int, context: int
) -> None:
    window = call.params["window"] or context + tokens
    seen = sum(min(context + token + 1, window) for token in range(tokens))
    read = min(context + tokens, window + tokens - 1)
    work.nbytes += sequences * read * kv.bytes_per_token / kv.layers
    work.multiply(PEAK_OF_KV[kv.dtype], 2.0 * sequences * seen * call.params["heads"] * kv.head_dim)
