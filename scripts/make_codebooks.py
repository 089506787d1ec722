"""Write the codebooks of the IQ types, for readers (`codebooks.npz`) and for kernels (`csrc/codebooks.h`).

They are part of what those types mean (ggml-common.h of ggml); the `gguf` package, an oracle of the tests, holds them.

    python scripts/make_codebooks.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import quants

ROOT = Path(__file__).resolve().parent.parent
ARRAYS = ROOT / "src/tokentrail/checkpoints/dequantize/codebooks.npz"
HEADER = ROOT / "csrc/codebooks.h"

SOURCES = {
    "iq1s": quants.IQ1_S,
    "iq2xxs": quants.IQ2_XXS,
    "iq2xs": quants.IQ2_XS,
    "iq2s": quants.IQ2_S,
    "iq3xxs": quants.IQ3_XXS,
    "iq3s": quants.IQ3_S,
}


def codebooks() -> dict[str, np.ndarray]:
    """Name → int8 [entries, 8 or 4]."""
    tables = {}
    for name, source in SOURCES.items():
        source.init_grid()
        tables[name] = source.grid.reshape(source.grid_shape).astype(np.int8)
    return tables


def header(tables: dict[str, np.ndarray]) -> str:
    """C++: an entry as one integer, its first value in the lowest byte."""
    lines = [
        "// Codebooks of the IQ types: an entry's values as bytes (signed in IQ1_S), the first one lowest.",
        "// Made by scripts/make_codebooks.py.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace tt {",
    ]
    for name, table in tables.items():
        width = table.shape[1]
        entries = table.view(np.uint8).reshape(len(table), width).view(f"<u{width}")[:, 0]
        lines += ["", f"inline constexpr uint{8 * width}_t {name.upper()}_CODEBOOK[{len(table)}] = {{"]
        per_line = 48 // width
        for start in range(0, len(entries), per_line):
            row = ", ".join(f"0x{int(entry):0{2 * width}x}" for entry in entries[start : start + per_line])
            lines.append(f"  {row},")
        lines.append("};")
    return "\n".join([*lines, "", "}  // namespace tt", ""])


def main() -> None:
    tables = codebooks()
    np.savez_compressed(ARRAYS, **tables)
    HEADER.write_text(header(tables))


if __name__ == "__main__":
    main()
