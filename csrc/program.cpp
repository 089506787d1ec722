#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "activation.h"
#include "math64.h"

namespace tt {

namespace {

constexpr int64_t MAX_SIZE = int64_t(1) << 24;  // of a buffer's rows and columns: their product in bytes cannot overflow
constexpr int64_t ROW_BLOCK = 132;  // rows of a matrix product whose activations stay in the second-level cache

}  // namespace

size_t attention_thread_bytes(int64_t group, int64_t head_dim) {
  return attention_scratch((int64_t)ATTENTION_TOKENS * std::max<int64_t>(1, group), head_dim);
}

Program::Program(std::shared_ptr<ThreadPool> pool, const Kernels* kernels, std::shared_ptr<KvCache> kv, Limits limits, int64_t vocab)
    : pool_(std::move(pool)), kernels_(kernels), kv_(std::move(kv)), limits_(limits), vocab_(vocab) {
  for (int64_t n : {limits.tokens, limits.sequences, limits.logit_rows})
    if (n <= 0 || n > MAX_SIZE) throw std::invalid_argument("limits must be positive and at most 2^24");
}

int Program::buffer(Rows rows, int64_t dim, bool quantized, float outlier_limit) {
  return add_buffer(rows, rows == Rows::TOKENS ? limits_.tokens : limits_.logit_rows, dim, quantized, outlier_limit);
}

int Program::add_buffer(Rows rows, int64_t max_rows, int64_t dim, bool quantized, float outlier_limit) {
  if (dim <= 0 || dim > MAX_SIZE) throw std::invalid_argument("a buffer has from 1 to 2^24 values a row");
  if (quantized && dim % GROUP) throw std::invalid_argument("quantized buffers need a multiple of 32 values a row");
  Buffer b{rows, max_rows, {}, Memory(activation_bytes(max_rows, dim, quantized, true))};
  b.activation = place_activation(b.memory.data(), max_rows, dim, quantized, true);
  b.activation.outlier_limit = outlier_limit;
  buffers_.push_back(std::move(b));
  return (int)buffers_.size() - 1;
}

size_t Program::bytes() const {
  size_t n = 0;
  for (const Buffer& b : buffers_) n += b.memory.size();
  for (const Memory& m : scratch_) n += m.size();
  for (const ExpertWorks& works : expert_works_)
    for (const ExpertWork& w : works.of_thread) n += w.bytes();
  return n;
}

// A barrier stands before a call that reads what was written, or writes what was read or written, since the last one.
// Layers of the cache count as buffers below -1.
Program::Call& Program::push(Kind kind, std::vector<int> reads, std::vector<int> writes) {
  auto has = [](const std::vector<int>& v, int id) { return std::find(v.begin(), v.end(), id) != v.end(); };
  for (int id : reads)
    if (id >= (int)buffers_.size()) throw std::invalid_argument("unknown buffer");
  Call call{};
  call.kind = kind;
  auto plan = [&](Dirty& dirty) {
    bool barrier = false;
    for (int id : reads) barrier |= has(dirty.writes, id);
    for (int id : writes) barrier |= has(dirty.writes, id) || has(dirty.reads, id);
    if (barrier) dirty = {};
    dirty.reads.insert(dirty.reads.end(), reads.begin(), reads.end());
    dirty.writes.insert(dirty.writes.end(), writes.begin(), writes.end());
    return barrier;
  };
  call.barrier = plan(dirty_);
  // Steps in which nobody has an adapter meet as if there were none.
  if (kind != Kind::LORA_IN && kind != Kind::LORA_OUT) call.plain_barrier = plan(plain_dirty_);
  calls_.push_back(std::move(call));
  counters_.reset();
  return calls_.back();
}

// Kernels trust the shapes they are given, so each call is checked when it is recorded.
void Program::need(int buffer, Rows rows, int64_t dim) const {
  if (buffers_.at(buffer).rows != rows || buffers_[buffer].activation.dim != dim)
    throw std::invalid_argument("a buffer has the wrong shape for this call");
}

void Program::embedding(const Matrix& table, float scale, int out) {
  need(out, Rows::TOKENS, dim(out));
  Call& c = push(Kind::EMBEDDING, {}, {out});
  c.w = table, c.a = scale, c.out = out;
}

void Program::rms_norm(int x, const float* weight, float eps, float weight_offset, int heads, int out) {
  need(out, buffers_.at(x).rows, dim(x));
  if (heads <= 0 || dim(x) % heads) throw std::invalid_argument("heads do not divide the buffer");
  Call& c = push(Kind::RMS_NORM, {x}, {out});
  c.x = x, c.weight = weight, c.a = eps, c.b = weight_offset, c.i0 = heads, c.out = out;
}

void Program::linear(int x, const Matrix& w, const float* bias, int residual, int out) {
  const Activation& in = buffers_.at(x).activation;
  if ((in.dim + GROUP - 1) / GROUP * GROUP != w.k || buffers_.at(out).activation.dim != w.n)
    throw std::invalid_argument("the matrix does not fit its buffers");
  if (buffers_[x].rows != buffers_[out].rows) throw std::invalid_argument("input and output have different rows");
  if (is_integer(w.layout) && !in.low) throw std::invalid_argument("integer weights need a quantized input");
  if (buffers_.at(out).activation.low) throw std::invalid_argument("a product's output cannot be quantized in place");
  if (x == out) throw std::invalid_argument("a product cannot write its own input");
  std::vector<int> reads{x};
  if (residual >= 0) {
    need(residual, buffers_[out].rows, w.n);
    reads.push_back(residual);
  }
  Call& c = push(Kind::LINEAR, reads, {out});
  c.x = x, c.y = residual, c.w = w, c.weight = bias, c.out = out;
}

void Program::rope_angles(std::vector<double> inverse_frequencies, float magnitude, double growth, int period, int out) {
  if (period <= 0) throw std::invalid_argument("a period must be positive");
  need(out, Rows::TOKENS, 2 * (int64_t)inverse_frequencies.size());
  Call& c = push(Kind::ANGLES, {}, {out});
  c.frequencies = std::move(inverse_frequencies), c.a = magnitude, c.growth = growth, c.i0 = period, c.out = out;
}

void Program::rope(int x, int heads, int head_dim, int dim, bool interleaved, int angles) {
  need(x, Rows::TOKENS, (int64_t)heads * head_dim);
  need(angles, Rows::TOKENS, dim);
  Call& c = push(Kind::ROPE, {angles}, {x});
  c.x = x, c.y = angles, c.i0 = heads, c.i1 = head_dim, c.i2 = dim, c.flag = interleaved;
}

void Program::kv_store(int k, int v, int layer) {
  if (layer < 0 || layer >= kv_->layers()) throw std::invalid_argument("no such layer in the KV cache");
  for (int id : {k, v}) need(id, Rows::TOKENS, (int64_t)kv_->heads() * kv_->head_dim());
  Call& c = push(Kind::KV_STORE, {k, v}, {-2 - layer});
  c.x = k, c.y = v, c.layer = layer;
}

void Program::attention(int q, int heads, float scale, int window, float softcap, const float* sinks, int layer, int out) {
  if (layer < 0 || layer >= kv_->layers()) throw std::invalid_argument("no such layer in the KV cache");
  if (heads <= 0 || heads % kv_->heads()) throw std::invalid_argument("query heads must be a multiple of the KV heads");
  for (int id : {q, out}) need(id, Rows::TOKENS, (int64_t)heads * kv_->head_dim());
  heads_ = std::max(heads_, heads);
  auto set = [&](Call& c) {
    c.x = q, c.i0 = heads, c.i1 = window, c.a = scale, c.b = softcap, c.weight = sinks, c.layer = layer, c.out = out;
  };
  set(push(Kind::ATTENTION, {q, -2 - layer}, {out}));
  // Long contexts of few sequences are split over threads; then the parts are merged in a second call.
  set(push(Kind::MERGE, {out}, {out}));
  scratch_.clear();
}

void Program::gated(Gated kind, int gate, int up, int out) {
  for (int id : {gate, up}) need(id, buffers_.at(out).rows, dim(out));
  Call& c = push(Kind::GATED, {gate, up}, {out});
  c.x = gate, c.y = up, c.i0 = (int)kind, c.out = out;
}

void Program::softcap(int x, float cap, int out) {
  need(x, buffers_.at(out).rows, dim(out));
  if (!(cap > 0)) throw std::invalid_argument("a soft cap must be positive");
  Call& c = push(Kind::SOFTCAP, {x}, {out});
  c.x = x, c.a = cap, c.out = out;
}

void Program::sigmoid_mul(int gate, int x, int out) {
  need(gate, buffers_.at(out).rows, 1);
  need(x, buffers_.at(out).rows, dim(out));
  if (gate == out) throw std::invalid_argument("a gate cannot be written over");
  Call& c = push(Kind::SIGMOID_MUL, {gate, x}, {out});
  c.x = gate, c.y = x, c.out = out;
}

void Program::add(int a, int b, int out) {
  for (int id : {a, b}) need(id, buffers_.at(out).rows, dim(out));
  Call& c = push(Kind::ADD, {a, b}, {out});
  c.x = a, c.y = b, c.out = out;
}

void Program::lora(int x, std::vector<LowRank> layer, int out) {
  const Rows rows = buffers_.at(x).rows;
  need(out, rows, dim(out));
  if (x == out || buffers_[out].activation.low) throw std::invalid_argument("an adapter adds to a plain product of another buffer");
  if (layer.empty() || (!lora_layers_.empty() && lora_layers_[0].size() != layer.size()))
    throw std::invalid_argument("every layer needs an entry for each adapter");
  int64_t rank = 0;
  for (const LowRank& l : layer) {
    if (!l.a.data) continue;
    if (is_integer(l.a.layout) || is_integer(l.b.layout)) throw std::invalid_argument("adapters have float layouts");
    if (l.a.k != (dim(x) + GROUP - 1) / GROUP * GROUP || l.b.n != dim(out) || l.b.k != (l.a.n + GROUP - 1) / GROUP * GROUP)
      throw std::invalid_argument("the adapter does not fit its buffers");
    rank = std::max(rank, l.a.n);
  }
  if (!rank) throw std::invalid_argument("no adapter has this layer");
  // Layers of one rank share the buffer between the two products.
  int inner = -1;
  for (const auto& [shape, id] : lora_buffers_)
    if (shape.first == rows && shape.second == rank) inner = id;
  if (inner < 0) {
    inner = buffer(rows, rank, false, 1.0f);
    lora_buffers_.push_back({{rows, rank}, inner});
  }
  lora_layers_.push_back(std::move(layer));
  for (Kind kind : {Kind::LORA_IN, Kind::LORA_OUT}) {
    const bool in = kind == Kind::LORA_IN;
    Call& c = in ? push(kind, {x}, {inner}) : push(kind, {inner, out}, {out});
    c.x = in ? x : inner, c.out = in ? inner : out, c.lora = (int)lora_layers_.size() - 1;
  }
}

void Program::gather_logit_rows(int x, int out) {
  need(x, Rows::TOKENS, dim(out));
  need(out, Rows::LOGITS, dim(out));
  Call& c = push(Kind::GATHER, {x}, {out});
  c.x = x, c.out = out;
}

void Program::gather_columns(int x, std::vector<int32_t> columns, int out) {
  need(x, buffers_.at(out).rows, dim(out));
  if (x == out) throw std::invalid_argument("columns cannot be gathered in place");
  if ((int64_t)columns.size() != dim(out)) throw std::invalid_argument("there must be as many columns as the buffer has");
  for (int32_t c : columns)
    if (c < 0 || c >= dim(x)) throw std::invalid_argument("column out of range");
  Call& c = push(Kind::COLUMNS, {x}, {out});
  c.x = x, c.columns = std::move(columns), c.out = out;
}

void Program::route(int scores, const float* correction, int chosen, Scoring scoring, bool normalize, float scale, int out) {
  need(out, buffers_.at(scores).rows, dim(scores));
  if (chosen < 1 || chosen > MAX_CHOSEN || chosen > dim(scores)) throw std::invalid_argument("so many experts cannot be chosen");
  if (scores == out || buffers_[out].activation.low) throw std::invalid_argument("weights of experts need a plain buffer of their own");
  Call& c = push(Kind::ROUTE, {scores}, {out});
  c.x = scores, c.out = out, c.route = {dim(scores), chosen, scoring, correction, normalize, scale};
}

// Buffers and scratch for layers of this shape; those of an earlier layer, where there are any.
int Program::expert_works(const ExpertLayer& layer, int64_t dim) {
  ExpertWorks w{};
  w.experts = (int64_t)layer.experts.size(), w.rows = limits_.tokens, w.dim = dim, w.chosen = layer.chosen;
  bool quantized = false;
  for (const Expert& e : layer.experts) {
    quantized |= is_integer(e.down.layout);
    for (const Matrix* m : {&e.gate, &e.up}) (is_integer(m->layout) ? w.integers : w.floats) = true;
  }
  const int64_t inner = layer.experts[0].gate.n;
  for (size_t i = 0; i < expert_works_.size(); ++i) {
    const ExpertWorks& o = expert_works_[i];
    const Activation& hidden = buffers_[o.hidden].activation;
    if (o.experts == w.experts && o.dim == dim && o.chosen == w.chosen && o.integers == w.integers && o.floats == w.floats &&
        hidden.dim == inner && (hidden.low != nullptr) == quantized)
      return (int)i;
  }
  if (w.rows * w.chosen > MAX_SIZE) throw std::invalid_argument("tokens times experts of each must be at most 2^24");
  w.hidden = add_buffer(Rows::PAIRS, w.rows * w.chosen, inner, quantized, EXPERT_OUTLIERS);
  const size_t groups = (size_t)max_expert_groups(w.experts, w.rows, w.chosen);
  w.done = std::make_unique<std::atomic<int32_t>[]>(groups);
  for (size_t i = 0; i < groups; ++i) w.done[i].store(0, std::memory_order_relaxed);
  for (int t = 0; t < pool_->size(); ++t) w.of_thread.emplace_back(w.experts, w.rows, w.chosen, dim, w.integers, w.floats);
  expert_works_.push_back(std::move(w));
  return (int)expert_works_.size() - 1;
}

void Program::experts(int x, int weights, ExpertLayer layer, int out) {
  const Activation& in = buffers_.at(x).activation;
  const int64_t count = (int64_t)layer.experts.size();
  if (count < 1 || layer.chosen < 1 || layer.chosen > count) throw std::invalid_argument("so many experts cannot be chosen");
  for (int id : {x, out}) need(id, Rows::TOKENS, dim(id));
  need(weights, Rows::TOKENS, count);
  if (buffers_[out].activation.low) throw std::invalid_argument("the output of experts cannot be quantized in place");
  if (out == x || out == weights) throw std::invalid_argument("experts cannot write their own input");
  auto padded = [](int64_t n) { return (n + GROUP - 1) / GROUP * GROUP; };
  const int64_t inner = layer.experts[0].gate.n;
  for (const Expert& e : layer.experts) {
    for (const Matrix* m : {&e.gate, &e.up}) {
      if (m->n != inner || m->k != padded(in.dim)) throw std::invalid_argument("the matrices of experts do not fit their buffers");
      if (is_integer(m->layout) && !in.low) throw std::invalid_argument("integer weights need a quantized input");
    }
    if (e.down.n != dim(out) || e.down.k != padded(inner)) throw std::invalid_argument("the matrices of experts do not fit their buffers");
  }
  const int works = expert_works(layer, in.dim), hidden = expert_works_[works].hidden;
  auto set = [&](Call& c) {
    c.x = x, c.y = weights, c.out = out, c.work = works, c.experts = (int)expert_layers_.size();
  };
  set(push(Kind::EXPERTS_IN, {x, weights}, {hidden}));
  set(push(Kind::EXPERTS_OUT, {hidden, weights}, {out}));
  expert_layers_.push_back(std::move(layer));
}

void Program::check(const StepView& s) const {
  auto fail = [](const std::string& what) { throw std::invalid_argument("step: " + what); };
  if (s.tokens < 1 || s.tokens > limits_.tokens) fail("number of tokens out of range");
  if (s.sequences < 1 || s.sequences > limits_.sequences) fail("number of sequences out of range");
  if (s.logit_rows < 0 || s.logit_rows > limits_.logit_rows) fail("number of logit rows out of range");
  if (s.row_starts[0] != 0 || s.row_starts[s.sequences] != s.tokens) fail("row_starts do not cover the tokens");
  for (int64_t q = 0; q < s.sequences; ++q) {
    const int64_t a = s.row_starts[q], b = s.row_starts[q + 1];
    if (a >= b || b > s.tokens) fail("row_starts must ascend to the number of tokens");
    for (int64_t t = a; t < b; ++t) {
      if (s.token_ids[t] < 0 || s.token_ids[t] >= vocab_) fail("token id out of range");
      if (s.positions[t] < 0 || (t > a && s.positions[t] - 1 != s.positions[t - 1])) fail("positions must ascend by one");
    }
    const int64_t blocks = s.positions[b - 1] / kv_->block_size() + 1;
    if (blocks > s.table_width) fail("block table too short");
    for (int64_t i = 0; i < blocks; ++i) {
      const int32_t block = s.block_tables[q * s.table_width + i];
      if (block < 0 || block >= kv_->blocks()) fail("block out of range");
    }
  }
  for (int64_t i = 0; i < s.logit_rows; ++i)
    if (s.logit_row_ids[i] < 0 || s.logit_row_ids[i] >= s.tokens) fail("logit row out of range");
}

// Cut the step's attention into tasks, the same for every layer; the longest first, so that the last ones are short. A few
// rows of a long context would be one long task: where that would leave other threads idle, each segment is a task, and the
// parts are merged afterwards.
void Program::plan(const StepView& s) {
  attention_tasks_.clear();
  merge_tasks_.clear();
  if (!heads_) return;
  const int32_t kv_heads = kv_->heads();
  const int64_t part = part_size(kv_->head_dim());
  auto segments = [&](int64_t row) { return s.positions[row] / SEGMENT + 1; };
  auto cost = [&](int64_t q) { return (s.row_starts[q + 1] - s.row_starts[q]) * segments(s.row_starts[q + 1] - 1); };
  int64_t floats = 0, all = 0;
  for (int64_t q = 0; q < s.sequences; ++q) all += cost(q) * kv_heads;
  for (int64_t q = 0; q < s.sequences; ++q) {
    const int64_t a = s.row_starts[q], b = s.row_starts[q + 1], count = segments(b - 1);
    if (pool_->size() > 1 && b - a <= ATTENTION_TOKENS && count > 1 && cost(q) * 4 * pool_->size() > all) {
      const int64_t stride = (b - a) * heads_ * part;
      for (int64_t r = a; r < b; ++r) merge_tasks_.push_back({r, r - a, count, floats, stride});
      for (int64_t g = 0; g < count; ++g)
        for (int32_t h = 0; h < kv_heads; ++h) attention_tasks_.push_back({q, a, b, h, g, g + 1, floats + g * stride});
      floats += count * stride;
      continue;
    }
    for (int64_t r = a; r < b; r += ATTENTION_TOKENS) {
      const int64_t end = std::min(r + ATTENTION_TOKENS, b);
      for (int32_t h = 0; h < kv_heads; ++h) attention_tasks_.push_back({q, r, end, h, 0, segments(end - 1), -1});
    }
  }
  std::stable_sort(attention_tasks_.begin(), attention_tasks_.end(), [&](const AttentionTask& x, const AttentionTask& y) {
    return (x.segment1 - x.segment0) * (x.row1 - x.row0) > (y.segment1 - y.segment0) * (y.row1 - y.row0);
  });
  if (!partials_ || partials_->size() < (size_t)floats * 4) partials_ = std::make_unique<Memory>((size_t)floats * 8);
}

// Which rows each adapter concerns: of neighbours of one adapter together, in blocks whose activations stay in the cache.
void Program::plan_adapters(const StepView& s, const int32_t* adapters) {
  adapter_runs_.clear();
  adapter_logit_runs_.clear();
  if (!adapters) return;
  const int64_t known = lora_layers_.empty() ? 0 : (int64_t)lora_layers_[0].size();
  for (int64_t q = 0; q < s.sequences; ++q)
    if (adapters[q] < -1 || adapters[q] >= known) throw std::invalid_argument("step: adapter out of range");
  auto add = [](std::vector<AdapterRun>& runs, int32_t adapter, int64_t row) {
    if (adapter < 0) return;
    if (!runs.empty() && runs.back().adapter == adapter && runs.back().row1 == row && row - runs.back().row0 < ROW_BLOCK)
      ++runs.back().row1;
    else
      runs.push_back({adapter, row, row + 1});
  };
  for (int64_t r = 0; r < s.tokens; ++r) add(adapter_runs_, adapters[s.row_sequence[r]], r);
  for (int64_t i = 0; i < s.logit_rows; ++i) add(adapter_logit_runs_, adapters[s.row_sequence[s.logit_row_ids[i]]], i);
}

// One of an adapter's two products. A row's sums have one order, whatever other rows run beside it.
void Program::execute_lora(size_t index, const std::vector<AdapterRun>& runs) {
  const Call& c = calls_[index];
  const bool in = c.kind == Kind::LORA_IN;
  const Activation& x = buffers_[c.x].activation;
  float* out = buffers_[c.out].activation.f;
  const int64_t width = in ? dim(c.out) : x.dim;  // of the buffer between: the largest rank
  auto& next = counters_[index].next;
  int64_t mine = next.fetch_add(1, std::memory_order_relaxed), task = 0;
  for (const AdapterRun& run : runs) {
    const LowRank& l = lora_layers_[c.lora][run.adapter];
    if (!l.a.data) continue;
    const Matrix& w = in ? l.a : l.b;
    const int64_t panels = w.panels(), chunk = std::clamp<int64_t>(panels / (4 * pool_->size()), 1, 64);
    // Rows lie `width` floats apart where a run begins, and `rank` floats apart within it.
    const int64_t rank = l.a.n, shift = run.row0 * (width - rank);
    for (int64_t p0 = 0; p0 < panels; p0 += chunk, ++task) {
      if (task != mine) continue;
      const int64_t p1 = std::min(p0 + chunk, panels);
      if (in) {
        kernels_->matmul(w, x, run.row0, run.row1, p0, p1, nullptr, nullptr, out + shift);
        for (int64_t r = run.row0; r < run.row1; ++r) {
          float* row = out + shift + r * rank;
          for (int64_t i = p0 * PANEL; i < std::min(p1 * PANEL, rank); ++i) row[i] *= l.scale;
        }
      } else {
        Activation inner;
        inner.dim = rank, inner.f = x.f + shift;
        kernels_->matmul(w, inner, run.row0, run.row1, p0, p1, nullptr, out, out);
      }
      mine = next.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void Program::run(StepView step, int only, const int32_t* adapters, bool states) {
  check(step);
  row_sequence_.resize((size_t)step.tokens);
  for (int64_t q = 0; q < step.sequences; ++q)
    for (int32_t t = step.row_starts[q]; t < step.row_starts[q + 1]; ++t) row_sequence_[t] = (int32_t)q;
  step.row_sequence = row_sequence_.data();
  if (only >= (int)calls_.size()) throw std::invalid_argument("no such call");
  plan(step);
  plan_adapters(step, adapters);
  if (!counters_) {
    num_counters_ = calls_.size();
    counters_ = std::make_unique<Counter[]>(num_counters_);
  }
  if (!heads_done_) heads_done_ = std::make_unique<std::atomic<int32_t>[]>((size_t)limits_.tokens);
  for (int64_t r = 0; r < step.tokens; ++r) heads_done_[r].store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < num_counters_; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  if (scratch_.empty()) {
    const size_t bytes = attention_thread_bytes(heads_ / kv_->heads(), kv_->head_dim());
    for (int t = 0; t < pool_->size(); ++t) scratch_.emplace_back(bytes);
  }
  const bool adapted = !adapter_runs_.empty() || !adapter_logit_runs_.empty();
  const size_t first = only < 0 ? 0 : (size_t)only, last = only >= 0 ? (size_t)only + 1 : states ? calls_.size() : (size_t)calls_without_states();
  pool_->run([&](int thread) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point start;
    bool owed = false;  // a skipped merge's barrier: later ones were planned as if it had been there
    for (size_t i = first; i < last; ++i) {
      if (calls_[i].lora >= 0 && !adapted) continue;
      owed |= (adapted ? calls_[i].barrier : calls_[i].plain_barrier) && i > first;
      if (calls_[i].kind == Kind::MERGE && merge_tasks_.empty()) continue;
      if (calls_[i].lora >= 0 && (buffers_[calls_[i].out].rows == Rows::TOKENS ? adapter_runs_ : adapter_logit_runs_).empty()) continue;
      if (owed) pool_->barrier();
      owed = false;
      if (timing_ && thread == 0) start = Clock::now();
      execute(i, step, thread);
      if (timing_) {
        pool_->barrier();
        if (thread == 0) calls_[i].seconds += std::chrono::duration<double>(Clock::now() - start).count();
      }
    }
  });
}

void Program::set_timing(bool on) {
  timing_ = on;
  for (Call& c : calls_) c.seconds = 0, c.runs = c.experts_run = 0;
}

std::vector<CallTiming> Program::timings() const {
  static const char* names[] = {"embedding", "rms_norm", "linear", "rope_angles", "rope", "kv_store", "attention", "merge", "gated", "softcap", "sigmoid_mul", "add", "gather", "gather_columns", "route", "experts in", "experts out", "lora in", "lora out"};
  std::vector<CallTiming> out;
  for (const Call& c : calls_) {
    CallTiming t{names[(int)c.kind], c.seconds};
    if (c.out >= 0) t.rows = buffers_[c.out].rows;
    if (c.kind == Kind::LINEAR) {
      t.name += " " + std::to_string(c.w.n) + "x" + std::to_string(c.w.k);
      t.layout = c.w.layout;
      t.weight_bytes = c.w.panels() * (int64_t)c.w.panel_bytes;
      t.macs_per_row = c.w.n * c.w.k;
    }
    if (c.kind == Kind::EXPERTS_IN || c.kind == Kind::EXPERTS_OUT) {
      const ExpertLayer& layer = expert_layers_[c.experts];
      const Expert& e = layer.experts[0];
      auto add = [&](const Matrix& w) {
        t.layout = w.layout;
        t.weight_bytes += w.panels() * (int64_t)w.panel_bytes;
        t.macs_per_row += layer.chosen * w.n * w.k;
      };
      const Matrix& w = c.kind == Kind::EXPERTS_IN ? e.gate : e.down;
      t.name += " " + std::to_string(w.n) + "x" + std::to_string(w.k);
      add(w);
      if (c.kind == Kind::EXPERTS_IN) add(e.up);
      // Of those that had rows, on average.
      t.weight_bytes = c.runs ? t.weight_bytes * c.experts_run / c.runs : 0;
    }
    out.push_back(std::move(t));
  }
  return out;
}

template <class F> void Program::each_row(size_t index, int64_t rows, int64_t grain, F&& body) {
  auto& next = counters_[index].next;
  for (int64_t r; (r = next.fetch_add(grain, std::memory_order_relaxed)) < rows;)
    for (int64_t i = r; i < std::min(r + grain, rows); ++i) body(i);
}

void Program::execute(size_t index, const StepView& s, int thread) {
  const Call& c = calls_[index];
  const Kernels& k = *kernels_;
  const Buffer* out = c.out >= 0 ? &buffers_[c.out] : nullptr;
  auto at = [&](int id, int64_t row) { return buffers_[id].activation.f + row * buffers_[id].activation.dim; };
  const int64_t dim = out ? out->activation.dim : 0;
  const int64_t rows = out ? count(out->rows, s) : s.tokens;
  const int64_t grain = std::clamp<int64_t>(rows / (4 * pool_->size()), 1, 16);
  switch (c.kind) {
    case Kind::EMBEDDING:
      each_row(index, rows, grain, [&](int64_t r) {
        float* o = at(c.out, r);
        k.dequantize_row(c.w, s.token_ids[r], dim, o);
        if (c.a != 1.0f) for (int64_t i = 0; i < dim; ++i) o[i] *= c.a;
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::RMS_NORM:
      each_row(index, rows, grain, [&](int64_t r) {
        const int64_t head = dim / c.i0;
        for (int64_t i = 0; i < dim; i += head) k.rms_norm(at(c.x, r) + i, c.weight, c.a, c.b, head, at(c.out, r) + i);
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::GATED:
      each_row(index, rows, grain, [&](int64_t r) {
        k.gated((Gated)c.i0, at(c.x, r), at(c.y, r), dim, at(c.out, r));
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::ADD:
      each_row(index, rows, grain, [&](int64_t r) {
        k.add(at(c.x, r), at(c.y, r), dim, at(c.out, r));
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::SOFTCAP:
      each_row(index, rows, grain, [&](int64_t r) {
        k.softcap(at(c.x, r), c.a, dim, at(c.out, r));
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::SIGMOID_MUL:
      each_row(index, rows, grain, [&](int64_t r) {
        k.sigmoid_mul(*at(c.x, r), at(c.y, r), dim, at(c.out, r));
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::GATHER:
      each_row(index, rows, grain, [&](int64_t r) {
        std::memcpy(at(c.out, r), at(c.x, s.logit_row_ids[r]), (size_t)dim * 4);
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::COLUMNS:
      each_row(index, rows, grain, [&](int64_t r) {
        const float* x = at(c.x, r);
        float* o = at(c.out, r);
        for (int64_t i = 0; i < dim; ++i) o[i] = x[c.columns[i]];
        if (out->activation.low) k.quantize(out->activation, r);
      });
      break;
    case Kind::ANGLES: {
      const int64_t n = (int64_t)c.frequencies.size();
      each_row(index, rows, grain, [&](int64_t r) {
        float *cosine = at(c.out, r), *sine = cosine + n;
        const int32_t periods = s.positions[r] / c.i0;
        const float magnitude = c.growth != 0 && periods ? (float)((double)c.a * (1.0 + c.growth * log64(1.0 + periods))) : c.a;
        for (int64_t i = 0; i < n; ++i) {
          double sn, cs;
          sincos64((double)s.positions[r] * c.frequencies[i], &sn, &cs);
          cosine[i] = (float)cs * magnitude;
          sine[i] = (float)sn * magnitude;
        }
      });
      break;
    }
    case Kind::ROPE:
      each_row(index, s.tokens, grain, [&](int64_t r) {
        const float* angles = at(c.y, r);
        k.rope(at(c.x, r), c.i0, c.i1, c.i2, c.flag, angles, angles + c.i2 / 2);
      });
      break;
    case Kind::KV_STORE: {
      const KvLayer kv = kv_->layer(c.layer);
      each_row(index, s.tokens, grain, [&](int64_t r) {
        const int64_t q = s.row_sequence[r];
        const int32_t position = s.positions[r];
        k.kv_store(kv, at(c.x, r), at(c.y, r), s.block_tables[q * s.table_width + position / kv.block_size],
                   position % kv.block_size);
      });
      break;
    }
    case Kind::ATTENTION: {
      const KvLayer kv = kv_->layer(c.layer);
      const AttentionArgs args{buffers_[c.x].activation.f, c.i0, c.a, c.i1, c.b, c.weight};
      auto& counter = counters_[index].next;
      const int64_t n = (int64_t)attention_tasks_.size();
      auto take = [&] { return counter.fetch_add(1, std::memory_order_relaxed); };
      // The next task is taken before this one is done, so that its keys are on their way; not near the end, where nobody
      // should hold what an idle thread could do.
      for (int64_t i = take(), next; i < n; i = next < 0 ? take() : next) {
        next = n - i > 2 * pool_->size() ? take() : -1;
        const AttentionTask& t = attention_tasks_[i];
        k.attention(kv, args, s, t, next >= 0 && next < n ? &attention_tasks_[next] : nullptr, scratch_[thread].data(),
                    t.partial < 0 ? nullptr : (float*)partials_->data() + t.partial, out->activation.f);
        // Whoever finishes a row's last head quantizes the row. The counts go on from layer to layer.
        if (t.partial < 0 && out->activation.low)
          for (int64_t r = t.row0; r < t.row1; ++r)
            if ((heads_done_[r].fetch_add(1, std::memory_order_acq_rel) + 1) % kv.heads == 0) k.quantize(out->activation, r);
      }
      break;
    }
    case Kind::MERGE: {
      const int64_t part = part_size(kv_->head_dim());
      each_row(index, (int64_t)merge_tasks_.size(), 1, [&](int64_t i) {
        const MergeTask& t = merge_tasks_[i];
        for (int32_t h = 0; h < c.i0; ++h)
          k.attention_merge((float*)partials_->data() + t.partial + (t.index * c.i0 + h) * part, t.segments, t.stride, kv_->head_dim(),
                            c.weight ? c.weight + h : nullptr, at(c.out, t.row) + (int64_t)h * kv_->head_dim());
        if (out->activation.low) k.quantize(out->activation, t.row);
      });
      break;
    }
    case Kind::ROUTE:
      each_row(index, rows, grain, [&](int64_t r) { k.route(c.route, at(c.x, r), at(c.out, r)); });
      break;
    case Kind::EXPERTS_IN:
    case Kind::EXPERTS_OUT: {
      ExpertWorks& works = expert_works_[c.work];
      const ExpertLayer& layer = expert_layers_[c.experts];
      const Activation& hidden = buffers_[works.hidden].activation;
      auto& next = counters_[index].next;
      ExpertWork& mine = works.of_thread[thread];
      const int64_t run = c.kind == Kind::EXPERTS_IN
                              ? experts_in(k, layer, buffers_[c.x].activation, at(c.y, 0), rows, hidden, next, works.done.get(), pool_->size(), mine)
                              : experts_out(k, layer, hidden, at(c.y, 0), rows, out->activation.f, next, pool_->size(), mine);
      if (timing_ && thread == 0) ++calls_[index].runs, calls_[index].experts_run += run;
      break;
    }
    case Kind::LORA_IN:
    case Kind::LORA_OUT:
      execute_lora(index, out->rows == Rows::TOKENS ? adapter_runs_ : adapter_logit_runs_);
      break;
    case Kind::LINEAR: {
      if (!rows) break;
      const Activation& x = buffers_[c.x].activation;
      const float* residual = c.y >= 0 ? buffers_[c.y].activation.f : nullptr;
      const int64_t panels = c.w.panels();
      // Enough tasks for balance, each a run of panels; longer ones with one row, which is a stream through memory.
      const int64_t row_blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
      const int64_t chunk = rows == 1 ? std::clamp<int64_t>((panels + 4 * pool_->size() - 1) / (4 * pool_->size()), 4, 64)
                                      : std::clamp<int64_t>(panels / (8 * pool_->size()) & ~1, 2, 64);
      const int64_t chunks = (panels + chunk - 1) / chunk;
      auto& next = counters_[index].next;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks * row_blocks;) {
        const int64_t p0 = i % chunks * chunk, r0 = i / chunks * ROW_BLOCK;
        k.matmul(c.w, x, r0, std::min(r0 + ROW_BLOCK, rows), p0, std::min(p0 + chunk, panels), c.weight, residual, out->activation.f);
      }
      break;
    }
  }
}

}  // namespace tt
