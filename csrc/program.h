// A recorded forward pass: a flat list of kernel calls over buffers sized when it was built, run by one call a step.
//
// All threads walk the list together. A call's work is cut into tasks that threads take from a counter, so a disturbed
// core does not stall a step; threads meet at a barrier only where a call needs what earlier ones have written. Neither
// the cut nor the thread changes any bit of the result (see kernels/kernels.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experts.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "memory.h"
#include "thread_pool.h"

namespace tt {

// PAIRS: of a token and an expert, as many as a layer of experts takes at most.
enum class Rows : int32_t { TOKENS, LOGITS, PAIRS };

// What one call took, and what it had to do: weights read once a step, multiply–accumulates a row.
struct CallTiming {
  std::string name;
  double seconds = 0;
  Rows rows = Rows::TOKENS;
  Layout layout = Layout::F32;  // of the weights, where there are any
  int64_t weight_bytes = 0, macs_per_row = 0;
};

struct Limits {
  int64_t tokens, sequences, logit_rows;
};

// What an adapter adds to a product: scale * b(a(x)), with a [rank, in] and b [out, rank] in float layouts. Without data: nothing.
struct LowRank {
  Matrix a{}, b{};
  float scale = 0;
};

// Bytes of scratch that each thread holds for attention, with `group` query heads a KV head.
size_t attention_thread_bytes(int64_t group, int64_t head_dim);

class Program {
 public:
  Program(std::shared_ptr<ThreadPool> pool, const Kernels* kernels, std::shared_ptr<KvCache> kv, Limits limits, int64_t vocab);

  // Buffers are named by small integers. `quantized` ones also carry their values as int8 groups, written with them.
  int buffer(Rows rows, int64_t dim, bool quantized, float outlier_limit);

  void embedding(const Matrix& table, float scale, int out);
  void rms_norm(int x, const float* weight, float eps, float weight_offset, int heads, int out);  // x / rms of each head; may be in place
  void linear(int x, const Matrix& w, const float* bias, int residual, int out);  // residual -1: none
  // out [tokens, 2 * n]: cos and sin times magnitude * (1 + growth * ln(1 + position / period)), whole periods counting.
  void rope_angles(std::vector<double> inverse_frequencies, float magnitude, double growth, int period, int out);
  void rope(int x, int heads, int head_dim, int dim, bool interleaved, int angles);     // in place
  void kv_store(int k, int v, int layer);
  void attention(int q, int heads, float scale, int window, float softcap, const float* sinks, int layer, int out);  // sinks: or null
  void gated(Gated kind, int gate, int up, int out);
  void softcap(int x, float cap, int out);         // may be in place
  void sigmoid_mul(int gate, int x, int out);      // gate has one value a row; may be in place
  // Add each row's adapter's product to `out`, in place. `layer[i]` is that of adapter i; all calls have as many.
  void lora(int x, std::vector<LowRank> layer, int out);
  void add(int a, int b, int out);                 // may be in place
  void gather_logit_rows(int x, int out);
  void gather_columns(int x, std::vector<int32_t> columns, int out);
  void route(int scores, const float* correction, int chosen, Scoring scoring, bool normalize, float scale, int out);
  // Σ over experts of weights[e] · expert e of x. A row has `layer.chosen` weights other than zero at most; later ones do not
  // count.
  void experts(int x, int weights, ExpertLayer layer, int out);

  // What is recorded from now on is only run in steps that ask for it: the states of tokens, which few steps need.
  void begin_states() { states_from_ = calls_.size(); }

  // Run all calls, those of states only where `states` asks for them; or only call `only` (eager execution).
  // Throws std::invalid_argument for a step outside the limits.
  // `adapters` [sequences]: the low-rank adapter of each, -1 for none; null: nobody has one.
  void run(StepView step, int only = -1, const int32_t* adapters = nullptr, bool states = false);
  int64_t calls() const { return (int64_t)calls_.size(); }
  int64_t calls_without_states() const { return (int64_t)std::min(states_from_, calls_.size()); }
  int64_t buffers() const { return (int64_t)buffers_.size(); }
  float* data(int buffer) const { return buffers_[buffer].activation.f; }
  int64_t dim(int buffer) const { return buffers_[buffer].activation.dim; }
  int64_t max_rows(int buffer) const { return buffers_[buffer].max_rows; }
  int64_t vocab() const { return vocab_; }
  size_t bytes() const;
  const Kernels* kernels() const { return kernels_; }
  // Seconds spent in each call since timing was switched on (thread 0's view; threads then meet after every call).
  void set_timing(bool on);
  std::vector<CallTiming> timings() const;

 private:
  enum class Kind : int32_t { EMBEDDING, RMS_NORM, LINEAR, ANGLES, ROPE, KV_STORE, ATTENTION, MERGE, GATED, SOFTCAP, SIGMOID_MUL, ADD, GATHER, COLUMNS, ROUTE, EXPERTS_IN, EXPERTS_OUT, LORA_IN, LORA_OUT };

  struct Buffer {
    Rows rows;
    int64_t max_rows;
    Activation activation;
    Memory memory;
  };
  struct Call {
    Kind kind;
    int x = -1, y = -1, out = -1;
    Matrix w{};
    const float* weight = nullptr;
    float a = 0, b = 0;
    double growth = 0;
    int i0 = 0, i1 = 0, i2 = 0, layer = -1;
    bool flag = false;
    std::vector<double> frequencies;
    std::vector<int32_t> columns;
    RouteArgs route{};
    int experts = -1, work = -1;  // of expert_layers_ and expert_works_
    int lora = -1;                // of lora_layers_
    bool barrier = false;         // threads meet before this call …
    bool plain_barrier = false;   // … in a step without adapters
    double seconds = 0;
    int64_t runs = 0, experts_run = 0;  // while timing: how often, and the experts that had rows in all
  };
  struct MergeTask {
    int64_t row, index;                 // of the step, and among those of its task
    int64_t segments, partial, stride;  // `stride` floats from a segment's parts to the next one's
  };
  // What layers of experts of one shape share.
  struct ExpertWorks {
    int hidden;  // buffer of pairs
    int64_t experts, rows, dim;
    int32_t chosen;
    bool integers, floats;
    std::unique_ptr<std::atomic<int32_t>[]> done;  // a group
    std::vector<ExpertWork> of_thread;
  };
  // Rows side by side that one adapter concerns.
  struct AdapterRun {
    int32_t adapter;
    int64_t row0, row1;
  };
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };

  int add_buffer(Rows rows, int64_t max_rows, int64_t dim, bool quantized, float outlier_limit);
  int expert_works(const ExpertLayer& layer, int64_t dim);
  Call& push(Kind kind, std::vector<int> reads, std::vector<int> writes);
  void need(int buffer, Rows rows, int64_t dim) const;
  void check(const StepView& step) const;
  void plan(const StepView& step);
  void plan_adapters(const StepView& step, const int32_t* adapters);
  void execute_lora(size_t index, const std::vector<AdapterRun>& runs);
  void execute(size_t index, const StepView& step, int thread);
  int64_t count(Rows rows, const StepView& step) const { return rows == Rows::TOKENS ? step.tokens : step.logit_rows; }
  template <class F> void each_row(size_t index, int64_t rows, int64_t grain, F&& body);

  std::shared_ptr<ThreadPool> pool_;
  const Kernels* kernels_;
  std::shared_ptr<KvCache> kv_;
  Limits limits_;
  int64_t vocab_;
  int32_t heads_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Call> calls_;
  size_t states_from_ = SIZE_MAX;
  struct Dirty {
    std::vector<int> reads, writes;
  };
  Dirty dirty_, plain_dirty_;  // since the last barrier, while recording; without what adapters do
  std::unique_ptr<Counter[]> counters_;
  size_t num_counters_ = 0;
  std::unique_ptr<std::atomic<int32_t>[]> heads_done_;  // a row
  std::vector<AttentionTask> attention_tasks_;
  std::vector<MergeTask> merge_tasks_;
  std::unique_ptr<Memory> partials_;
  std::vector<int32_t> row_sequence_;
  std::vector<std::vector<LowRank>> lora_layers_;
  std::vector<std::pair<std::pair<Rows, int64_t>, int>> lora_buffers_;  // of rows and rank
  std::vector<AdapterRun> adapter_runs_, adapter_logit_runs_;
  std::vector<Memory> scratch_;  // one a thread
  std::vector<ExpertLayer> expert_layers_;
  std::vector<ExpertWorks> expert_works_;
  bool timing_ = false;
};

}  // namespace tt
