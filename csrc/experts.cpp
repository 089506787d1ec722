#include "experts.h"

#include <algorithm>
#include <cstring>

#include "activation.h"

namespace tt {

namespace {

// Panels [panel0, panel1) of a matrix as one of its own.
Matrix slice(const Matrix& w, int64_t panel0, int64_t panel1) {
  Matrix part = w;
  part.n = std::min(w.n, panel1 * PANEL) - panel0 * PANEL;
  part.data = w.data + (size_t)panel0 * w.panel_bytes;
  return part;
}

const float* from(const float* bias, int64_t panel) { return bias ? bias + panel * PANEL : nullptr; }

int64_t distinct(const std::vector<ExpertGroup>& groups) {
  int64_t n = 0;
  for (size_t i = 0; i < groups.size(); ++i) n += !i || groups[i].expert != groups[i - 1].expert;
  return n;
}

}  // namespace

int64_t max_expert_groups(int64_t experts, int64_t rows, int32_t chosen) { return experts + rows * chosen / EXPERT_ROWS + 1; }

ExpertWork::ExpertWork(int64_t experts, int64_t rows, int32_t chosen, int64_t dim, bool integers, bool floats)
    : ids_((size_t)(rows * chosen)),
      rows_((size_t)(rows * chosen)),
      ends_((size_t)rows),
      cursors_((size_t)experts + 1),
      gathered_(activation_bytes(std::min(rows, EXPERT_ROWS), dim, integers, floats)),
      scratch_(2 * SCRATCH * 4) {
  groups_.reserve((size_t)max_expert_groups(experts, rows, chosen));
  copy_ = place_activation(gathered_.data(), std::min(rows, EXPERT_ROWS), dim, integers, floats);
}

size_t ExpertWork::bytes() const {
  return (ids_.size() + rows_.size()) * 4 + (ends_.size() + cursors_.size()) * 8 + groups_.capacity() * sizeof(ExpertGroup) +
         gathered_.size() + scratch_.size();
}

void ExpertWork::plan(const Kernels& k, const ExpertLayer& layer, const float* weights, int64_t rows) {
  const int64_t experts = (int64_t)layer.experts.size();
  std::fill(cursors_.begin(), cursors_.begin() + experts + 1, 0);
  int64_t pairs = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t count = k.chosen_of(weights + r * experts, experts, layer.chosen, ids_.data() + pairs);
    for (int32_t i = 0; i < count; ++i) ++cursors_[ids_[pairs + i] + 1];
    pairs += count;
    ends_[r] = pairs;
  }
  groups_.clear();
  most_rows_ = 0;
  copied_ = -1;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t first = cursors_[e], left = cursors_[e + 1];
    cursors_[e + 1] += first;
    // In blocks of nearly equal height, as products take them.
    for (int64_t blocks = (left + EXPERT_ROWS - 1) / EXPERT_ROWS; blocks; --blocks) {
      const int64_t count = (left + blocks - 1) / blocks;
      groups_.push_back({(int32_t)e, first, count});
      most_rows_ = std::max(most_rows_, count);
      first += count, left -= count;
    }
  }
  for (int64_t r = 0, i = 0; r < rows; ++r)
    for (; i < ends_[r]; ++i) rows_[cursors_[ids_[i]]++] = (int32_t)r;
}

Activation ExpertWork::rows_of(const Activation& x, const ExpertGroup& group) {
  const int64_t first = rows_[group.first];
  if (rows_[group.first + group.count - 1] - first == group.count - 1) return x.from_row(first);
  if (copied_ != group.first) {
    for (int64_t i = 0; i < group.count; ++i) copy_.copy_row(i, x, rows_[group.first + i]);
    copied_ = group.first;
  }
  return copy_;
}

int64_t ExpertWork::chunk(int64_t panels, int64_t shares) const {
  const int64_t most = std::min<int64_t>(64, SCRATCH / (most_rows_ * PANEL));
  const int64_t chunks = std::clamp<int64_t>(shares, (panels + most - 1) / most, std::max<int64_t>(panels / 4, 1));
  const int64_t chunk = (panels + chunks - 1) / chunks;
  return most_rows_ > 1 ? std::min(most, (chunk + 1) & ~(int64_t)1) : chunk;  // products of rows take two panels at a time
}

int64_t experts_in(const Kernels& k, const ExpertLayer& layer, const Activation& x, const float* weights, int64_t rows,
                   const Activation& hidden, std::atomic<int64_t>& next, std::atomic<int32_t>* done, int threads, ExpertWork& work) {
  work.plan(k, layer, weights, rows);
  const auto& groups = work.groups();
  if (groups.empty()) return 0;
  const int64_t panels = layer.experts[0].gate.panels(), size = (int64_t)groups.size();
  const int64_t chunk = work.chunk(panels, (8 * threads + size - 1) / size), chunks = (panels + chunk - 1) / chunk;
  float *gate = work.scratch(0), *up = work.scratch(1);
  for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < size * chunks;) {
    const ExpertGroup& g = groups[i / chunks];
    const Expert& e = layer.experts[g.expert];
    const int64_t p0 = i % chunks * chunk, p1 = std::min(p0 + chunk, panels);
    const Activation in = work.rows_of(x, g);
    const Matrix gate_part = slice(e.gate, p0, p1), up_part = slice(e.up, p0, p1);
    k.matmul(gate_part, in, 0, g.count, 0, p1 - p0, from(e.gate_bias, p0), nullptr, gate);
    k.matmul(up_part, in, 0, g.count, 0, p1 - p0, from(e.up_bias, p0), nullptr, up);
    const int64_t n = gate_part.n;
    for (int64_t r = 0; r < g.count; ++r)
      k.gated(layer.activation, gate + r * n, up + r * n, n, hidden.f + (g.first + r) * hidden.dim + p0 * PANEL);
    if (!hidden.low) continue;
    // Whoever finishes the last of a group's columns has its whole rows.
    std::atomic<int32_t>& count = done[i / chunks];
    if (count.fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) continue;
    count.store(0, std::memory_order_relaxed);
    for (int64_t r = 0; r < g.count; ++r) k.quantize(hidden, g.first + r);
  }
  return distinct(groups);
}

int64_t experts_out(const Kernels& k, const ExpertLayer& layer, const Activation& hidden, const float* weights, int64_t rows,
                    float* out, std::atomic<int64_t>& next, int threads, ExpertWork& work) {
  work.plan(k, layer, weights, rows);
  const auto& groups = work.groups();
  const int64_t n = layer.experts[0].down.n, panels = layer.experts[0].down.panels(), experts = (int64_t)layer.experts.size();
  const int64_t chunk = groups.empty() ? panels : work.chunk(panels, 4 * threads), chunks = (panels + chunk - 1) / chunk;
  float* part = work.scratch(0);
  for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
    const int64_t p0 = i * chunk, p1 = std::min(p0 + chunk, panels), col = p0 * PANEL, width = std::min(n, p1 * PANEL) - col;
    for (int64_t r = 0; r < rows; ++r) std::memset(out + r * n + col, 0, (size_t)width * 4);
    for (const ExpertGroup& g : groups) {
      const Expert& e = layer.experts[g.expert];
      k.matmul(slice(e.down, p0, p1), hidden.from_row(g.first), 0, g.count, 0, p1 - p0, from(e.down_bias, p0), nullptr, part);
      for (int64_t r = 0; r < g.count; ++r) {
        const int64_t row = work.row(g.first + r);
        k.add_scaled(part + r * width, weights[row * experts + g.expert], width, out + row * n + col);
      }
    }
  }
  return distinct(groups);
}

}  // namespace tt
