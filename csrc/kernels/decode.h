// Groups of one panel decoded for products of many rows: bytes in the order of Shape's words of 8 bits, and factors.
#pragma once

#include <cstring>

#include "codebooks.h"
#include "kernels/unpack.h"

namespace tt::TT_ISA {

constexpr int CHUNK = 8;  // groups decoded together: a whole block where blocks are long

struct alignas(64) DecodedGroup {
  uint8_t q[GROUP * PANEL];
  float scale[2][PANEL], min[2][PANEL];
};

inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
inline uint32_t half_at(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half;
}

// Eight magnitudes, of which a mask names those below zero, around SIGNED_ZERO: no byte carries into its neighbour.
inline uint64_t with_signs(uint64_t magnitudes, uint64_t mask) { return magnitudes + 0x4040404040404040u - 2 * (magnitudes & mask); }
// Values 8 g - 1 or 8 g + 1 around SHIFTED_ZERO.
inline uint64_t shifted(uint64_t values, bool down) { return down ? values - 0x0101010101010101u : values + 0x0101010101010101u; }

// Eight values of column c of a group: number `o` of four.
template <Layout L> inline uint64_t grid_values(const uint8_t* record, int c, int o) {
  const uint8_t *word = record + 4 * c, *bytes = record + shape_of(L).words * 64 + c;
  if constexpr (L == Layout::IQ2_XXS) {
    return with_signs(IQ2XXS_CODEBOOK[word[o]], EVEN_SIGN_MASKS.at[word_at(word + 64) >> 7 * o & 127]);
  } else if constexpr (L == Layout::IQ2_XS) {
    const uint32_t index = half_at(word + o / 2 * 64 + o % 2 * 2);
    return with_signs(IQ2XS_CODEBOOK[index & 511], EVEN_SIGN_MASKS.at[index >> 9]);
  } else if constexpr (L == Layout::IQ2_S) {
    return with_signs(IQ2S_CODEBOOK[word[o] | (bytes[0] >> 2 * o & 3) << 8], SIGN_MASKS.at[word[64 + o]]);
  } else if constexpr (L == Layout::IQ3_XXS) {
    const uint8_t* index = word + o / 2 * 64 + o % 2 * 2;
    return with_signs(IQ3XXS_CODEBOOK[index[0]] | (uint64_t)IQ3XXS_CODEBOOK[index[1]] << 32,
                      EVEN_SIGN_MASKS.at[word_at(word + 128) >> 7 * o & 127]);
  } else if constexpr (L == Layout::IQ3_S) {
    const uint8_t* index = word + o / 2 * 64 + o % 2 * 2;
    const int high = bytes[0] >> 2 * o;
    return with_signs(IQ3S_CODEBOOK[index[0] | (high & 1) << 8] | (uint64_t)IQ3S_CODEBOOK[index[1] | (high & 2) << 7] << 32,
                      SIGN_MASKS.at[word[128 + o]]);
  } else if constexpr (L == Layout::IQ1_S) {
    const int high = bytes[0] | bytes[PANEL] << 8;
    return shifted(SHIFTED_GRID.at[word[o] | (high >> 3 * o & 7) << 8], high >> 15);
  } else {
    static_assert(L == Layout::IQ1_M);
    const int high = bytes[o / 2 * PANEL] >> o % 2 * 4;
    return shifted(SHIFTED_GRID.at[word[o] | (high & 7) << 8], high & 8);
  }
}

#if defined(TT_VEC_AVX512)

// Sixteen columns at once: indices are looked up in tables of 16-bit codes, a few bits a value; these number it in a table of
// 16 bytes, and signs make it the opposite around the zero point.

inline VI shr_by(VI x, int n) { return {_mm512_srlv_epi32(x.v, _mm512_set1_epi32(n))}; }

// The entry of each half of a lane, of which the low bits of N - 1 count.
template <int N> inline __m512i lookup(const uint16_t* table, __m512i halves) {
  if constexpr (N == 64) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), halves, _mm512_loadu_si512(table + 32));
  } else {
    const __mmask32 upper = _mm512_test_epi16_mask(halves, _mm512_set1_epi16(N / 2));
    return _mm512_mask_blend_epi16(upper, lookup<N / 2>(table, halves), lookup<N / 2>(table + N / 2, halves));
  }
}
// Two bytes as two halves.
inline VI two_bytes(VI x) { return (x & set1i(0xFF)) | shl<8>(x & set1i(0xFF00)); }
// Seven signs in each half, and an eighth that makes their number even.
inline VI even_signs(VI s) {
  __m512i p = _mm512_xor_si512(s.v, shr<4>(s).v);
  p = _mm512_xor_si512(p, shr<2>(VI{p}).v);
  p = _mm512_xor_si512(p, shr<1>(VI{p}).v);
  return s | shl<7>(VI{p} & set1i(0x00010001));
}
// Byte `at` of each lane, four times.
inline VI four_times(VI x, int at) {
  return {_mm512_shuffle_epi8(x.v, _mm512_add_epi8(_mm512_set4_epi32(0x0C0C0C0C, 0x08080808, 0x04040404, 0), _mm512_set1_epi8((char)at)))};
}
// Four times two bits, in a byte that stands four times: one in the lowest bits of their bytes, the next in the two above.
inline VI spread2(VI x) {
  return VI{_mm512_srlv_epi16(x.v, _mm512_set1_epi32(0x00040000))} & set1i(0x0C030C03);
}
// Four times three bits as four bytes.
inline VI spread3(VI x) {
  x = (x | shl<10>(x)) & set1i(0x003F003F);
  return (x | shl<5>(x)) & set1i(0x07070707);
}

// Values around their zero points, 64 plus the magnitudes and 8 times 1, 2 and 3: two bits count them in either place.
alignas(16) inline constexpr uint8_t IQ2_VALUES[16] = {72, 89, 107, 0, 89, 0, 0, 0, 107};
alignas(16) inline constexpr uint8_t IQ1_VALUES[16] = {9, 17, 25, 0, 17, 0, 0, 0, 25};
alignas(16) inline constexpr uint8_t IQ3XXS_VALUES[16] = {68, 76, 84, 92, 100, 108, 116, 126};
alignas(16) inline constexpr uint8_t IQ3S_VALUES[16] = {65, 67, 69, 71, 73, 75, 77, 79};

template <Layout L> inline void decode_grid(const uint8_t* record, uint8_t* q) {
  constexpr bool THREE = L == Layout::IQ3_XXS || L == Layout::IQ3_S, SHIFTS = L == Layout::IQ1_S || L == Layout::IQ1_M;
  const uint8_t* bytes = record + shape_of(L).words * 64;
  VI high = set1i(0);  // high bits of indices
  if constexpr (L == Layout::IQ2_S || L == Layout::IQ3_S) high = load_u8(bytes);
  if constexpr (L == Layout::IQ1_S) high = load_u8(bytes) | shl<8>(load_u8(bytes + PANEL));
#pragma GCC unroll 2
  for (int two = 0; two < 2; ++two) {  // two times eight values
    VI signs = set1i(0), codes[2];     // of either eight, a half of a lane, or, with three bits, codes of either four
    const auto half = [two](VI x, int bits) { return two ? shr_by(x, bits) : x; };
    if constexpr (L == Layout::IQ2_XXS || L == Layout::IQ3_XXS) {
      const VI s = half(loadi(record + 64 * (shape_of(L).words - 1)), 14);
      signs = even_signs((s & set1i(0x7F)) | shl<9>(s & set1i(0x3F80)));
    } else if constexpr (L == Layout::IQ2_S || L == Layout::IQ3_S) {
      signs = two_bytes(half(loadi(record + 64 * (shape_of(L).words - 1)), 16));
    } else if constexpr (L == Layout::IQ2_XS) {
      signs = even_signs(shr<9>(loadi(record + 64 * two)) & set1i(0x007F007F));
    } else if constexpr (L == Layout::IQ1_M) {
      high = load_u8(bytes + PANEL * two);
    }
    if constexpr (THREE) {
      const VI index = loadi(record + 64 * two);
      for (int e = 0; e < 2; ++e) {
        VI pair = two_bytes(e ? shr<16>(index) : index);
        if constexpr (L == Layout::IQ3_S) {
          const VI h = shr_by(high, 4 * two + 2 * e);
          pair = pair | shl<8>(h & set1i(1)) | shl<23>(h & set1i(2));
          codes[e] = {lookup<512>(IQ3S_CODES.at, pair.v)};
        } else {
          codes[e] = {lookup<256>(IQ3XXS_CODES.at, pair.v)};
        }
      }
    } else if constexpr (L == Layout::IQ2_XS) {
      codes[0] = {lookup<512>(IQ2XS_CODES.at, (loadi(record + 64 * two) & set1i(0x01FF01FF)).v)};
    } else {
      VI pair = two_bytes(half(loadi(record), 16));
      if constexpr (L == Layout::IQ2_XXS) codes[0] = {lookup<256>(IQ2XXS_CODES.at, pair.v)};
      if constexpr (L == Layout::IQ2_S) {
        const VI h = half(high, 4);
        pair = pair | shl<8>(h & set1i(3)) | shl<22>(h & set1i(12));
        codes[0] = {lookup<1024>(IQ2S_CODES.at, pair.v)};
      }
      if constexpr (L == Layout::IQ1_S) {
        const VI h = half(high, 6);
        pair = pair | shl<8>(h & set1i(7)) | shl<21>(h & set1i(0x38));
        codes[0] = {lookup<2048>(IQ1S_CODES.at, pair.v)};
      }
      if constexpr (L == Layout::IQ1_M) {
        pair = pair | shl<8>(high & set1i(7)) | shl<20>(high & set1i(0x70));
        codes[0] = {lookup<2048>(IQ1S_CODES.at, pair.v)};
      }
    }
#pragma GCC unroll 4
    for (int run = 0; run < 4; ++run) {
      VI values;
      if constexpr (THREE) {
        const VI index = spread3(run % 2 ? shr<16>(codes[run / 2]) : codes[run / 2] & set1i(0xFFFF));
        values = table16(L == Layout::IQ3_S ? IQ3S_VALUES : IQ3XXS_VALUES, index);
      } else {
        values = table16(SHIFTS ? IQ1_VALUES : IQ2_VALUES, spread2(four_times(codes[0], run)));
      }
      if constexpr (SHIFTS) {
        const int bit = L == Layout::IQ1_S ? 15 : run < 2 ? 3 : 7;
        const __mmask16 down = _mm512_test_epi32_mask(high.v, _mm512_set1_epi32(1 << bit));
        values = {_mm512_mask_sub_epi32(values.v, down, values.v, _mm512_set1_epi32(0x02020202))};
      } else {
        const VI bits = set1i(run % 2 ? (int32_t)0x80402010 : 0x08040201);
        const __mmask64 negative = _mm512_test_epi8_mask(four_times(signs, run / 2 * 2).v, bits.v);
        values = {_mm512_mask_sub_epi8(values.v, negative, _mm512_set1_epi8((char)(2 * SIGNED_ZERO)), values.v)};
      }
      storei(q + 256 * two + 64 * run, values);
    }
  }
}

#else

template <Layout L> inline void decode_grid(const uint8_t* record, uint8_t* q) {
  for (int c = 0; c < PANEL; ++c)
#pragma GCC unroll 4
    for (int o = 0; o < 4; ++o) {
      const uint64_t values = grid_values<L>(record, c, o);
      const uint32_t first = (uint32_t)values, second = (uint32_t)(values >> 32);
      std::memcpy(q + 128 * o + 4 * c, &first, 4);
      std::memcpy(q + 128 * o + 64 + 4 * c, &second, 4);
    }
}

#endif

// Digits of three, the highest first: a byte stands for a fraction of 256, of which each multiplication by three brings one
// digit before the point. Even and odd bytes are widened to 16 bits.
struct Digits {
  VI even, odd;
  inline void start(const uint8_t* words) {
    const VI bytes = loadi(words), low = set1i(0x00FF00FF);
    even = bytes & low;
    odd = shr<8>(bytes) & low;
  }
  inline VI next() {
    const VI low = set1i(0x00FF00FF), three_even = even + shl<1>(even), three_odd = odd + shl<1>(odd);
    even = three_even & low;
    odd = three_odd & low;
    return (shr<8>(three_even) & low) | (three_odd & set1i((int32_t)0xFF00FF00));
  }
};

// A block of TQ1_0: 32 bytes hold the groups 0 to 4, a digit a group; 16 bytes the next two and a half; four the rest.
inline void decode_trits(const uint8_t* record, DecodedGroup* to, int stride) {
  Digits digits;
  for (int word = 0; word < 8; ++word) {
    digits.start(record + 64 * word);
    for (int g = 0; g < 5; ++g) storei(to[g * stride].q + 64 * word, digits.next());
  }
  for (int word = 0; word < 4; ++word) {
    digits.start(record + 512 + 64 * word);
    for (int half = 0; half < 5; ++half) storei(to[(5 + half / 2) * stride].q + half % 2 * 256 + 64 * word, digits.next());
  }
  digits.start(record + 768);
  for (int run = 4; run < 8; ++run) storei(to[7 * stride].q + 64 * run, digits.next());
}

// Groups [group, group + count) of a panel, to every `stride`-th of `to`; count is at most CHUNK, and `group` a multiple of it.
// What stands `ahead` bytes further is fetched into the cache.
template <Layout L>
inline void decode(const Matrix& w, const uint8_t* panel, int64_t group, int count, size_t ahead, DecodedGroup* to, int stride = 1) {
  constexpr Shape S = shape_of(L);
  constexpr size_t HEADER = S.header_bytes(), RECORD = S.record_bytes();
  const int64_t per_block = (S.block ? S.block : w.group) / GROUP;
  const size_t block_bytes = HEADER + (size_t)per_block * GROUP / S.record * RECORD;
  for (int i = 0; i < count; ++i, ++group) {
    const uint8_t *block = panel + (size_t)(group / per_block) * block_bytes;
    const uint8_t* record = block + HEADER + (size_t)(group % per_block) * GROUP / S.record * RECORD;
    if (ahead)
      for (size_t at = 0; at < RECORD / (S.record / GROUP); at += 64) __builtin_prefetch(record + at + ahead);
    VF d, m;
    read_header<L>(block, d, m);
    Factors f;
    read_factors<L>(d, m, record, f);
    DecodedGroup& here = to[i * stride];
    for (int h = 0; h < kind_of(L).halves; ++h) {
      store(here.scale[h], f.scale[h]);
      if (kind_of(L).min) store(here.min[h], f.min[h]);
    }
    if constexpr (L == Layout::TQ1_0) {
      if (i == 0) decode_trits(record, to, stride);
    } else if constexpr (kind_of(L).form == Form::DECODED) {
      decode_grid<L>(record, here.q);
    } else {
      VI q[8];
      unpack<L>(record, q);
      for (int j = 0; j < 8; ++j) storei(here.q + 64 * j, q[j]);
    }
  }
}

}  // namespace tt::TT_ISA
