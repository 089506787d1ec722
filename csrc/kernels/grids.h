// Tables for decoding ggml's grid types, beside the codebooks themselves (codebooks.h).
#pragma once

#include <cstdint>

namespace tt {

constexpr int SIGNED_ZERO = 64;   // what products take for zero where weights have signs: magnitudes are at most 62
constexpr int SHIFTED_ZERO = 16;  // and where they are 8 times -1, 0 or 1, plus or minus 1

template <class Entry, int N> struct Table {
  Entry at[N];
};

extern const Table<uint64_t, 2048> SHIFTED_GRID;    // the codebook of IQ1 times 8, plus SHIFTED_ZERO
extern const Table<uint64_t, 256> SIGN_MASKS;       // eight bits as eight bytes, 0xFF where a bit is set
extern const Table<uint64_t, 128> EVEN_SIGN_MASKS;  // of seven bits and an eighth that makes their number even

// Codebooks with two bits a value, or three in IQ3: which of their few values it is.
extern const Table<uint16_t, 256> IQ2XXS_CODES;
extern const Table<uint16_t, 512> IQ2XS_CODES;
extern const Table<uint16_t, 1024> IQ2S_CODES;
extern const Table<uint16_t, 256> IQ3XXS_CODES;
extern const Table<uint16_t, 512> IQ3S_CODES;
extern const Table<uint16_t, 2048> IQ1S_CODES;

}  // namespace tt
