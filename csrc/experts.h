// The experts of a layer: which rows of a step each of them gets, and its products with those rows.
//
// Rows are grouped by expert, so that an expert's weights are read once a step. Two calls of a program share the work:
// `experts_in` makes each pair's (an expert's and a row's) hidden values, down to the int8 form that the next product takes;
// `experts_out` computes the experts' outputs and adds them up. In the second one a task owns columns of the output and
// walks the experts in ascending order, so a row's sum has one order, and needs no buffer for its parts.
#pragma once

#include <atomic>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"

namespace tt {

// A gated feed-forward network, down(activation(gate(x), up(x))). Biases may be null.
struct Expert {
  Matrix gate, up, down;
  const float *gate_bias, *up_bias, *down_bias;
};

struct ExpertLayer {
  std::vector<Expert> experts;  // all of one shape
  Gated activation;
  int32_t chosen;  // of a row, at most
};

constexpr float EXPERT_OUTLIERS = 0.4f;  // outlier_limit of hidden values: OUTLIERS in ops/program.py
constexpr int64_t EXPERT_ROWS = 132;  // of an expert that a task computes together: their activations stay in the cache

// Rows of one expert: pairs [first, first + count) of the plan.
struct ExpertGroup {
  int32_t expert;
  int64_t first, count;
};

// One thread's plan and scratch. Each thread plans by itself, which is less work than waiting for another to do it, and
// all come to the same plan.
class ExpertWork {
 public:
  // For steps of so many rows; `dim` values are the experts' input.
  ExpertWork(int64_t experts, int64_t rows, int32_t chosen, int64_t dim, bool integers, bool floats);

  // Pairs in ascending order of expert, then of row.
  void plan(const Kernels& k, const ExpertLayer& layer, const float* weights, int64_t rows);
  const std::vector<ExpertGroup>& groups() const { return groups_; }
  int64_t row(int64_t pair) const { return rows_[pair]; }
  // The group's rows of x, side by side: as they are, or copied.
  Activation rows_of(const Activation& x, const ExpertGroup& group);
  // Panels that a task takes, of so many; `shares` of them are wanted in all.
  int64_t chunk(int64_t panels, int64_t shares) const;
  float* scratch(int which) { return (float*)scratch_.data() + which * SCRATCH; }  // two of SCRATCH floats
  size_t bytes() const;

 private:
  static constexpr int64_t SCRATCH = EXPERT_ROWS * 16 * PANEL;

  std::vector<int32_t> ids_, rows_;      // by row; by pair
  std::vector<int64_t> ends_, cursors_;  // of a row's ids; of an expert's pairs
  std::vector<ExpertGroup> groups_;
  int64_t most_rows_ = 0;
  Activation copy_;
  int64_t copied_ = -1;  // the group's first pair
  Memory gathered_, scratch_;
};

// Groups that a step can come to: every expert's last one may be short.
int64_t max_expert_groups(int64_t experts, int64_t rows, int32_t chosen);

// Both run on all threads at once, which take tasks from `next`. `weights` [rows, experts]; `hidden` [pairs, intermediate];
// `done`, one a group, is zero between calls. Return the experts that had rows.
int64_t experts_in(const Kernels& k, const ExpertLayer& layer, const Activation& x, const float* weights, int64_t rows,
                   const Activation& hidden, std::atomic<int64_t>& next, std::atomic<int32_t>* done, int threads, ExpertWork& work);
int64_t experts_out(const Kernels& k, const ExpertLayer& layer, const Activation& hidden, const float* weights, int64_t rows,
                    float* out, std::atomic<int64_t>& next, int threads, ExpertWork& work);

}  // namespace tt
