// The table of one instruction set's kernels.
#include "kernels/kernels.h"

#define TT_CONCAT_(a, b) a##b
#define TT_CONCAT(a, b) TT_CONCAT_(a, b)
#define TT_STRING_(a) #a
#define TT_STRING(a) TT_STRING_(a)

namespace tt {
namespace TT_ISA {

void matmul(const Matrix&, const Activation&, int64_t, int64_t, int64_t, int64_t, const float*, const float*, float*);
void dequantize_row(const Matrix&, int64_t, int64_t, float*);
void quantize(const Activation&, int64_t);
void rms_norm(const float*, const float*, float, float, int64_t, float*);
void gated(Gated, const float*, const float*, int64_t, float*);
void softcap(const float*, float, int64_t, float*);
void sigmoid_mul(float, const float*, int64_t, float*);
void add(const float*, const float*, int64_t, float*);
void rope(float*, int32_t, int32_t, int32_t, bool, const float*, const float*);
void kv_store(const KvLayer&, const float*, const float*, int32_t, int32_t);
void attention(const KvLayer&, const AttentionArgs&, const StepView&, const AttentionTask&, const AttentionTask*, uint8_t*, float*,
               float*);
void attention_merge(float*, int64_t, int64_t, int32_t, const float*, float*);
void route(const RouteArgs&, const float*, float*);
int32_t chosen_of(const float*, int64_t, int32_t, int32_t*);
void add_scaled(const float*, float, int64_t, float*);
void sample_row(const SampleArgs&, int64_t, uint8_t*);
void quantize_weights(Layout, bool, const uint8_t*, int64_t, uint8_t*, double*);
int64_t peak_macs(Peak, int64_t);
int64_t peak_macs_per_round(Peak);
int64_t peak_read(int, const uint8_t*, size_t);

}  // namespace TT_ISA

const Kernels* TT_CONCAT(kernels_, TT_ISA)() {
  using namespace TT_ISA;
  static const Kernels table = {TT_STRING(TT_ISA), matmul, dequantize_row, quantize, rms_norm, gated, softcap, sigmoid_mul,
                                add, rope, kv_store, attention, attention_merge, route, chosen_of, add_scaled,
                                sample_row, quantize_weights, peak_macs, peak_macs_per_round, peak_read};
  return &table;
}

}  // namespace tt
