// The kernels' common vocabulary: weight layouts, buffers, and the table of functions that each instruction set fills.
//
// Rules that make a row's bits independent of everything but the row (docs/architecture.md, "Same bytes"):
// each output element is reduced in one fixed order over K; no order depends on the number of rows, the tile or the
// thread; tails run the main loop's operations on zeros; no libm, no contraction by the compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/layouts.h"

namespace tt {

constexpr int SEGMENT = 256;     // positions whose attention is computed afresh and then merged, absolute borders
constexpr int MAX_HEAD_DIM = 1024;
constexpr int TILE = 16;         // positions of K stored side by side, one per vector lane

// Activations of T rows. `f` [T, dim] single; for integer weights also integers q = round(x / step) in groups of 32, their
// `sum`, and `dsum`, the sum of the values they stand for. step is max|x| / 127, so that q fits a byte.
//
// A few groups hold outliers and would have a coarse step for all their values; they would make most of a row's rounding
// error. So a group whose step^2 is over four times `outlier_limit` times the row's mean of max^2 / 127^2 takes the step of
// that limit itself, and its outliers a second byte: q = low + 16 * high, with high from -8 to 7 times 16. `wide` says
// which runs of four values (bit i: the i-th of the group) have a high byte other than zero; only groups that have one
// write `high` at all.
struct Activation {
  int64_t dim = 0;
  float outlier_limit = 1.0f;
  float* f = nullptr;
  int8_t* low = nullptr;    // [T, dim]
  int8_t* high = nullptr;   // [T, dim], where `wide` says so
  float* step = nullptr;    // [T, dim / 32], as the next three
  float* dsum = nullptr;
  int32_t* sum = nullptr;
  int16_t* halves = nullptr;  // [T, dim / 16]: the sums of a group's first sixteen integers, and of the others
  uint8_t* wide = nullptr;

  // What begins with row `row` of this one.
  TT_INLINE Activation from_row(int64_t row) const {
    const int64_t values = row * dim, groups = row * (dim / GROUP);
    Activation rest = *this;
    if (f) rest.f += values;
    if (low) rest.low += values, rest.high += values, rest.step += groups, rest.dsum += groups, rest.sum += groups, rest.halves += 2 * groups, rest.wide += groups;
    return rest;
  }
  // Row `row` of `other`, of the same `dim`, becomes row `to`, in the forms that this one has.
  TT_INLINE void copy_row(int64_t to, const Activation& other, int64_t row) const {
    const Activation here = from_row(to), there = other.from_row(row);
    const size_t groups = (size_t)(dim / GROUP);
    if (f) std::memcpy(here.f, there.f, (size_t)dim * 4);
    if (!low) return;
    std::memcpy(here.low, there.low, (size_t)dim);
    std::memcpy(here.step, there.step, groups * 4);
    std::memcpy(here.dsum, there.dsum, groups * 4);
    std::memcpy(here.sum, there.sum, groups * 4);
    std::memcpy(here.halves, there.halves, groups * 4);
    std::memcpy(here.wide, there.wide, groups);
    for (size_t g = 0; g < groups; ++g)
      if (here.wide[g]) std::memcpy(here.high + g * GROUP, there.high + g * GROUP, GROUP);
  }
};

enum class KvType : int32_t { BF16, INT8, F32 };

// One layer's keys and values. A block holds, for one kv head after the other, its keys and right behind them its
// values: one run of memory, which the hardware's prefetching follows; so `v` points half a head behind `k`. Keys of 16
// positions stand side by side, so that scores of 16 positions are one vector; values of two positions stand in pairs.
// Per tile of 16 positions: bfloat16 K [head_dim/2][16][2], V [8][head_dim][2]; float32 K [head_dim][16], V [16][head_dim];
// int8 K [head_dim/4][16][4] offset by 128, V [4][head_dim][4], each followed by the 16 positions' scales in single.
struct KvLayer {
  KvType type;
  uint8_t* k;
  uint8_t* v;
  int32_t heads, head_dim, block_size;
  TT_INLINE size_t position_bytes() const {  // keys or values of one position and head
    return type == KvType::BF16 ? (size_t)2 * head_dim : type == KvType::INT8 ? (size_t)head_dim + 4 : (size_t)4 * head_dim;
  }
  TT_INLINE size_t tile_bytes() const { return TILE * position_bytes(); }
  TT_INLINE size_t half_bytes() const { return tile_bytes() * (block_size / TILE); }  // keys or values of a head
  TT_INLINE size_t head_bytes() const { return 2 * half_bytes(); }
  TT_INLINE size_t block_bytes() const { return head_bytes() * heads; }
};

// What one step computes: S sequences with T new tokens (engine/batch.py describes the arrays).
struct StepView {
  int64_t tokens, sequences, logit_rows, table_width;
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* row_starts;
  const int32_t* block_tables;
  const int32_t* logit_row_ids;
  const int32_t* row_sequence;  // [T], the sequence each row belongs to; Program::run fills it in
};

struct AttentionArgs {
  const float* q;  // [T, heads * head_dim]
  int32_t heads;
  float scale;
  int32_t window;   // 0: unlimited; else a query sees itself and window - 1 positions before
  float softcap;    // 0: none
  const float* sinks;  // [heads], a score of each head that has no value; or null
};

// Query rows [row0, row1) of one sequence (ATTENTION_TOKENS at most), all query heads of one kv head, over the segments
// [segment0, segment1). `partial`: where its parts go among those to be merged, in floats; -1 when it merges them itself.
struct AttentionTask {
  int64_t sequence, row0, row1;
  int32_t kv_head;
  int64_t segment0, segment1, partial;
};

// How a router's scores become weights: over all experts, each by itself, or over the chosen ones.
enum class Scoring : int32_t { SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN };
constexpr int MAX_CHOSEN = 256;          // experts of a row
constexpr float LEAST_WEIGHT = 1e-20f;  // what weights are divided by where their sum is less

struct RouteArgs {
  int64_t experts;
  int32_t chosen;           // at most MAX_CHOSEN and `experts`
  Scoring scoring;
  const float* correction;  // [experts], added to scores for the choice alone, or null
  bool normalize;
  float scale;
};

// What a gated feed-forward network makes of gate(x) and up(x) (`ACTIVATIONS` in ops/program.py).
enum class Gated : int32_t { SILU, GELU_TANH, SWIGLU_OAI };

struct SampleArgs {
  int64_t rows, vocab;
  float* logits;  // [rows, vocab], overwritten
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;
  const uint64_t* seed;
  const int32_t *choice, *position, *num_top, *target;
  const float* typical_p;                                       // [rows] or null
  const float *frequency, *presence, *repetition;               // [rows] or null
  const int32_t *prompt_tokens, *prompt_offsets;                // ragged or null
  const int32_t *output_tokens, *output_offsets;
  const int32_t *bias_tokens, *bias_offsets;
  const float* bias_values;
  const uint32_t* masks;  // [any, words of 32 tokens]: bit t % 32 of word t / 32 allows token t. Or null
  const int32_t* mask_rows;  // [rows], each row's mask, or -1
  int64_t num_masks;
  int64_t top_width;
  int32_t* out_token;        // [rows]
  float* out_logprob;        // [rows]
  int32_t* out_top_token;    // [rows, top_width]
  float* out_top_logprob;
};

// What `tokentrail bench roofline` measures: products of each kind of operands, and ways to read memory.
enum class Peak : int32_t { INT8, INT4, BF16, F32 };  // INT4: int8 times values below 16
constexpr int READ_PATTERNS = 4;

struct Kernels {
  const char* isa;
  // Rows [row0, row1) times panels [panel0, panel1) of W: out = x W^T (+ bias) (+ residual). out and residual may be the same.
  void (*matmul)(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                 const float* bias, const float* residual, float* out);
  // One row of W as `dim` floats (the layout's k may be padded).
  void (*dequantize_row)(const Matrix& w, int64_t row, int64_t dim, float* out);
  // Fill in the int8 form of one row of `x.f`.
  void (*quantize)(const Activation& x, int64_t row);
  // out = x / rms(x) * (weight + weight_offset) over n values (the offset is Gemma's 1). Here and below out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, float weight_offset, int64_t n, float* out);
  void (*gated)(Gated kind, const float* gate, const float* up, int64_t n, float* out);
  void (*softcap)(const float* x, float cap, int64_t n, float* out);       // cap * tanh(x / cap)
  void (*sigmoid_mul)(float gate, const float* x, int64_t n, float* out);  // sigmoid(gate) * x
  void (*add)(const float* a, const float* b, int64_t n, float* out);
  // Rotate `heads` heads of one row in place; cos and sin have dim/2 values.
  void (*rope)(float* x, int32_t heads, int32_t head_dim, int32_t dim, bool interleaved, const float* cos, const float* sin);
  // Write one row's keys and values at an offset of a block.
  void (*kv_store)(const KvLayer& kv, const float* k, const float* v, int32_t block, int32_t offset);
  // One task's rows. Merged in ascending order into `out` [T, heads * head_dim] when `partial` is null; else the fresh parts
  // go to partial[segment - segment0][row - row0][query head][part_size], as weighted values, maximum and sum. `next` is
  // what this thread does afterwards, as far as known, or null: its keys are asked for. `scratch` has attention_scratch
  // bytes, aligned to 64.
  void (*attention)(const KvLayer& kv, const AttentionArgs& a, const StepView& s, const AttentionTask& task,
                    const AttentionTask* next, uint8_t* scratch, float* partial, float* out);
  // Merge `segments` parts of one query head, `stride` floats apart. `sink` is the head's, or null.
  void (*attention_merge)(float* partial, int64_t segments, int64_t stride, int32_t head_dim, const float* sink, float* out);
  // One row of scores [experts] → weights [experts], zero but for the chosen.
  void (*route)(const RouteArgs& a, const float* scores, float* weights);
  // The experts of a row with a weight other than zero, ascending, `limit` at most; returns their number.
  int32_t (*chosen_of)(const float* weights, int64_t experts, int32_t limit, int32_t* ids);
  void (*add_scaled)(const float* x, float scale, int64_t n, float* out);  // out += scale * x
  void (*sample_row)(const SampleArgs& a, int64_t row, uint8_t* scratch);
  // `count` groups of 32 weights in BF16, F16 or F32 to blocks of Q4_0 (`four`) or Q8_0. Adds to losses[0] the squares of what is
  // lost, to losses[1] those of the values.
  void (*quantize_weights)(Layout source, bool four, const uint8_t* from, int64_t count, uint8_t* to, double* losses);
  // Run so many rounds of independent multiply–accumulates; read memory in one of the patterns. The values returned
  // depend on all the work.
  int64_t (*peak_macs)(Peak peak, int64_t rounds);
  int64_t (*peak_macs_per_round)(Peak peak);
  int64_t (*peak_read)(int pattern, const uint8_t* data, size_t bytes);
};

constexpr int ATTENTION_TOKENS = 16;  // query tokens that one attention task takes at most
constexpr int ATTENTION_ROWS = 12;    // rows, a token's query head each, that a kernel computes together at most

// Floats of a part: weighted values, then maximum and sum.
TT_INLINE int64_t part_size(int64_t head_dim) { return head_dim + 16; }

// Scratch of a task over so many rows: scores, weights and fresh parts of those computed together; queries and running parts.
TT_INLINE size_t attention_scratch(int64_t rows, int64_t head_dim) {
  return (size_t)(ATTENTION_ROWS * (2 * SEGMENT + part_size(head_dim)) + rows * (part_size(head_dim) + head_dim + 6)) * 4 + 64 * 8;
}

const Kernels* kernels_portable();
#ifdef TT_X86
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_avx512_bf16();
#endif
#ifdef TT_ARM64
const Kernels* kernels_neon();
const Kernels* kernels_neon_dotprod();
const Kernels* kernels_neon_i8mm();
#endif

}  // namespace tt
