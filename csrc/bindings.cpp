// The native module as Python sees it. Arrays are checked for type, shape and contiguity here, and values in the classes
// below, so that no call from Python can read or write out of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "activation.h"
#include "dispatch.h"
#include "math64.h"
#include "pack.h"
#include "program.h"
#include "quantize.h"
#include "roofline.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tt;

namespace {

template <class T> using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Out1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A matrix together with the memory it lives in.
struct PackedMatrix {
  std::shared_ptr<Arena> arena;
  Matrix matrix;
};

PackedMatrix pack_matrix(std::shared_ptr<Arena> arena, std::shared_ptr<ThreadPool> pool, const std::string& format,
                         Array1<uint8_t> data, int64_t n, int64_t k) {
  if (data.shape(0) != stored_bytes(format, n, k)) throw std::invalid_argument("the data has a different size than the matrix");
  nb::gil_scoped_release release;
  const Matrix m = pack(*arena, *pool, {{format, data.data(), n, k}})[0];
  return {std::move(arena), m};
}

using StoredMatrix = std::tuple<std::string, Array1<uint8_t>, int64_t, int64_t>;

std::vector<PackedMatrix> pack_matrices(std::shared_ptr<Arena> arena, std::shared_ptr<ThreadPool> pool, const std::vector<StoredMatrix>& matrices) {
  std::vector<Stored> stored;
  for (const auto& [format, data, n, k] : matrices) {
    if (data.shape(0) != stored_bytes(format, n, k)) throw std::invalid_argument("the data has a different size than the matrix");
    stored.push_back({format, data.data(), n, k});
  }
  nb::gil_scoped_release release;
  std::vector<PackedMatrix> out;
  for (const Matrix& m : pack(*arena, *pool, stored)) out.push_back({arena, m});
  return out;
}

std::pair<double, double> quantize_array(ThreadPool& pool, const std::string& isa, const std::string& source, const std::string& target,
                                         Array1<uint8_t> data, Out1<uint8_t> blocks) {
  const size_t taken = group_bytes(source, true), made = group_bytes(target, false), count = data.shape(0) / taken;
  if (data.shape(0) % taken || blocks.shape(0) != count * made) throw std::invalid_argument("data and blocks hold different groups of 32 values");
  nb::gil_scoped_release release;
  return quantize_weights(pool, *kernels_for(isa), source, target, data.data(), (int64_t)count, blocks.data());
}

// Holds what the calls point to: weights, biases and norms stay alive as long as the program.
class BoundProgram : public Program {
 public:
  using Program::Program;
  std::vector<PackedMatrix> matrices;
  std::vector<Array1<float>> vectors;
  const float* keep(const Array1<float>& v, int64_t size) {
    if ((int64_t)v.shape(0) != size) throw std::invalid_argument("a vector has a different size than its buffer");
    vectors.push_back(v);
    return v.data();
  }
  void check_buffer(int b) const {
    if (b < 0 || b >= buffers()) throw std::invalid_argument("unknown buffer");
  }
};

// The member of an enumeration that `name` stands for.
template <class E> E named(const std::string& name, std::initializer_list<const char*> names, const char* what) {
  int i = 0;
  for (const char* n : names) {
    if (name == n) return (E)i;
    ++i;
  }
  throw std::invalid_argument("unknown " + std::string(what) + " " + name);
}

void run_program(BoundProgram& p, Array1<int32_t> tokens, Array1<int32_t> positions, Array1<int32_t> row_starts,
                 Array2<int32_t> block_tables, Array1<int32_t> logit_rows, int only, std::optional<Array1<int32_t>> adapters, bool states) {
  StepView s{};
  s.tokens = (int64_t)tokens.shape(0);
  s.sequences = (int64_t)row_starts.shape(0) - 1;
  s.logit_rows = (int64_t)logit_rows.shape(0);
  s.table_width = (int64_t)block_tables.shape(1);
  if ((int64_t)positions.shape(0) != s.tokens || (int64_t)block_tables.shape(0) != s.sequences)
    throw std::invalid_argument("step: arrays of different lengths");
  s.token_ids = tokens.data();
  s.positions = positions.data();
  s.row_starts = row_starts.data();
  s.block_tables = block_tables.data();
  s.logit_row_ids = logit_rows.data();
  if (adapters && (int64_t)adapters->shape(0) != s.sequences) throw std::invalid_argument("step: arrays of different lengths");
  nb::gil_scoped_release release;
  p.run(s, only, adapters ? adapters->data() : nullptr, states);
}

Gated activation_of(const std::string& name) { return named<Gated>(name, {"silu", "gelu_tanh", "swiglu_oai"}, "activation"); }

// gate, up and down, each with its bias or None.
using ExpertParts = std::tuple<PackedMatrix, std::optional<Array1<float>>, PackedMatrix, std::optional<Array1<float>>, PackedMatrix,
                               std::optional<Array1<float>>>;

void add_experts(BoundProgram& p, int x, int weights, const std::vector<ExpertParts>& experts, const std::string& activation, int chosen,
                 int out) {
  for (int b : {x, weights, out}) p.check_buffer(b);
  ExpertLayer layer;
  layer.activation = activation_of(activation);
  layer.chosen = chosen;
  auto bias = [&](const std::optional<Array1<float>>& b, const PackedMatrix& w) { return b ? p.keep(*b, w.matrix.n) : nullptr; };
  for (const auto& [gate, gate_bias, up, up_bias, down, down_bias] : experts) {
    for (const PackedMatrix* w : {&gate, &up, &down}) p.matrices.push_back(*w);
    layer.experts.push_back({gate.matrix, up.matrix, down.matrix, bias(gate_bias, gate), bias(up_bias, up), bias(down_bias, down)});
  }
  p.experts(x, weights, std::move(layer), out);
}

template <class T> const T* optional_data(const std::optional<Array1<T>>& a, size_t size, const char* name) {
  if (!a) return nullptr;
  if (a->shape(0) != size) throw std::invalid_argument(std::string("sampling: ") + name + " has the wrong length");
  return a->data();
}

void run_sampler(Sampler& sampler, Out2<float> logits, Array1<float> temperature, Array1<float> top_p, Array1<float> min_p,
                 Array1<int32_t> top_k, Array1<uint64_t> seed, Array1<int32_t> choice, Array1<int32_t> position,
                 Array1<int32_t> num_top, Array1<int32_t> target, Out1<int32_t> out_tokens, Out1<float> out_logprobs,
                 Out2<int32_t> out_top_tokens, Out2<float> out_top_logprobs, std::optional<Array1<float>> frequency,
                 std::optional<Array1<float>> presence, std::optional<Array1<float>> repetition,
                 std::optional<Array1<int32_t>> prompt_tokens, std::optional<Array1<int32_t>> prompt_offsets,
                 std::optional<Array1<int32_t>> output_tokens, std::optional<Array1<int32_t>> output_offsets,
                 std::optional<Array1<int32_t>> bias_tokens, std::optional<Array1<float>> bias_values,
                 std::optional<Array1<int32_t>> bias_offsets, std::optional<Array2<uint32_t>> masks,
                 std::optional<Array1<int32_t>> mask_rows, std::optional<Array1<float>> typical_p) {
  const size_t rows = temperature.shape(0);
  auto same = [&](size_t n) {
    if (n != rows) throw std::invalid_argument("sampling: arrays of different lengths");
  };
  for (size_t n : {top_p.shape(0), min_p.shape(0), top_k.shape(0), seed.shape(0), choice.shape(0), position.shape(0),
                   num_top.shape(0), target.shape(0), out_tokens.shape(0), out_logprobs.shape(0), out_top_tokens.shape(0),
                   out_top_logprobs.shape(0)})
    same(n);
  if (logits.shape(0) < rows || (int64_t)logits.shape(1) != sampler.vocab() || out_top_tokens.shape(1) != out_top_logprobs.shape(1))
    throw std::invalid_argument("sampling: logits or alternatives have the wrong shape");
  SampleArgs a{};
  a.rows = (int64_t)rows;
  a.vocab = sampler.vocab();
  a.logits = logits.data();
  a.temperature = temperature.data(), a.top_p = top_p.data(), a.min_p = min_p.data(), a.top_k = top_k.data();
  a.seed = seed.data(), a.choice = choice.data(), a.position = position.data();
  a.num_top = num_top.data(), a.target = target.data();
  a.typical_p = optional_data(typical_p, rows, "typical_p");
  a.frequency = optional_data(frequency, rows, "frequency_penalty");
  a.presence = optional_data(presence, rows, "presence_penalty");
  a.repetition = optional_data(repetition, rows, "repetition_penalty");
  auto ragged = [&](const std::optional<Array1<int32_t>>& tokens, const std::optional<Array1<int32_t>>& offsets, const char* name,
                    const int32_t** t, const int32_t** o) {
    *o = optional_data(offsets, rows + 1, name);
    if (!*o) return;
    if (!tokens || (int64_t)tokens->shape(0) != (*o)[rows]) throw std::invalid_argument(std::string("sampling: ") + name + " tokens do not match their offsets");
    *t = tokens->data();
  };
  ragged(prompt_tokens, prompt_offsets, "prompt", &a.prompt_tokens, &a.prompt_offsets);
  ragged(output_tokens, output_offsets, "output", &a.output_tokens, &a.output_offsets);
  ragged(bias_tokens, bias_offsets, "bias", &a.bias_tokens, &a.bias_offsets);
  if (a.bias_offsets) a.bias_values = optional_data(bias_values, (size_t)a.bias_offsets[rows], "bias values");
  if (a.bias_offsets && !a.bias_values) throw std::invalid_argument("sampling: bias values are missing");
  a.mask_rows = optional_data(mask_rows, rows, "mask_rows");
  if (a.mask_rows) {
    if (!masks || (int64_t)masks->shape(1) != (sampler.vocab() + 31) / 32) throw std::invalid_argument("sampling: masks need a bit for each token of the vocabulary");
    a.masks = masks->data();
    a.num_masks = (int64_t)masks->shape(0);
  }
  a.top_width = (int64_t)out_top_tokens.shape(1);
  a.out_token = out_tokens.data(), a.out_logprob = out_logprobs.data();
  a.out_top_token = out_top_tokens.data(), a.out_top_logprob = out_top_logprobs.data();
  nb::gil_scoped_release release;
  sampler.run(a);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of Tokentrail.";
  m.def("available_isas", &available_isas, "Instruction sets this machine can run, best first.");
  m.def("layout_name", [](const std::string& format) { return layout_name(layout_of(format)); }, "format"_a);
  m.def("is_integer", [](const std::string& format) { return is_integer(layout_of(format)); }, "format"_a,
        "Whether products with this format take quantized activations.");
  m.def("packed_bytes", [](const std::string& format, int64_t n, int64_t k) { return packed_bytes(format, n, k); },
        "format"_a, "n"_a, "k"_a);
  m.def("buffer_bytes", [](int64_t rows, int64_t dim, bool quantized) { return activation_bytes(rows, dim, quantized, true); },
        "rows"_a, "dim"_a, "quantized"_a, "Bytes of one of a program's buffers.");
  m.def("experts_thread_bytes", [](int64_t experts, int64_t rows, int32_t chosen, int64_t dim, bool integers, bool floats) {
    return ExpertWork(experts, rows, chosen, dim, integers, floats).bytes();
  }, "experts"_a, "rows"_a, "chosen"_a, "dim"_a, "integers"_a, "floats"_a, "Bytes of scratch a thread, for layers of experts of one shape.");
  m.def("thread_bytes", [](int64_t group, int64_t head_dim, int64_t vocab) {
    return attention_thread_bytes(group, head_dim) + sampler_thread_bytes(vocab);
  }, "group"_a, "head_dim"_a, "vocab"_a, "Bytes of scratch a thread, for attention and for sampling.");
  m.def("rope_frequencies", [](int dim, double theta) {
    std::vector<double> f;
    const double step = log64(theta);
    for (int i = 0; i < dim / 2; ++i) f.push_back(exp64(-step * (2.0 * i / dim)));
    return f;
  }, "dim"_a, "theta"_a, "theta^(-2i/dim), the same bits on every machine.");

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("size", &ThreadPool::size);

  nb::enum_<Peak>(m, "Peak")
      .value("INT8", Peak::INT8)
      .value("INT4", Peak::INT4)
      .value("BF16", Peak::BF16)
      .value("F32", Peak::F32);
  m.def("read_bandwidth", [](ThreadPool& pool, const std::string& isa, size_t bytes, int repetitions) {
    nb::gil_scoped_release release;
    return read_bandwidth(pool, *kernels_for(isa), bytes, repetitions);
  }, "pool"_a, "isa"_a, "bytes"_a, "repetitions"_a, "Bytes a second that all threads read together.");
  m.def("mac_rate", [](ThreadPool& pool, const std::string& isa, Peak peak, double seconds) {
    nb::gil_scoped_release release;
    return mac_rate(pool, *kernels_for(isa), peak, seconds);
  }, "pool"_a, "isa"_a, "peak"_a, "seconds"_a, "Multiply-accumulates a second of all threads together.");

  nb::class_<Arena>(m, "Arena").def(nb::init<>()).def_prop_ro("used", &Arena::used);

  nb::class_<PackedMatrix>(m, "Matrix")
      .def_prop_ro("n", [](const PackedMatrix& p) { return p.matrix.n; })
      .def_prop_ro("k", [](const PackedMatrix& p) { return p.matrix.k; })
      .def_prop_ro("integer", [](const PackedMatrix& p) { return is_integer(p.matrix.layout); })
      .def_prop_ro("nbytes", [](const PackedMatrix& p) { return p.matrix.panel_bytes * (size_t)p.matrix.panels(); });
  m.def("pack_all", &pack_matrices, "arena"_a, "pool"_a, "matrices"_a, "Pack several: (format, data, n, k) of each.");
  m.def("pack", &pack_matrix, "arena"_a, "pool"_a, "format"_a, "data"_a, "n"_a, "k"_a,
        "Pack a stored [n, k] matrix for the kernels.");

  m.def("quantize_weights", &quantize_array, "pool"_a, "isa"_a, "source"_a, "target"_a, "data"_a, "blocks"_a,
        "Full precision to blocks of Q8_0 or Q4_0; returns the sums of squares of errors and of values.");

  nb::class_<KvCache>(m, "KvCache")
      .def("__init__", [](KvCache* self, const std::string& dtype, int64_t layers, int64_t blocks, int32_t block_size, int32_t heads, int32_t head_dim) {
        if (dtype != "bfloat16" && dtype != "int8" && dtype != "float32")
          throw std::invalid_argument("the KV cache is bfloat16, int8 or float32");
        const KvType type = dtype == "float32" ? KvType::F32 : dtype == "int8" ? KvType::INT8 : KvType::BF16;
        new (self) KvCache(type, layers, blocks, block_size, heads, head_dim);
      }, "dtype"_a, "layers"_a, "blocks"_a, "block_size"_a, "heads"_a, "head_dim"_a)
      .def_prop_ro("bytes", &KvCache::bytes)
      .def_prop_ro("blocks", &KvCache::blocks)
      .def_prop_ro("block_size", &KvCache::block_size);

  nb::class_<CallTiming>(m, "CallTiming")
      .def_ro("name", &CallTiming::name)
      .def_ro("seconds", &CallTiming::seconds)
      .def_prop_ro("logit_rows", [](const CallTiming& t) { return t.rows == Rows::LOGITS; })
      .def_prop_ro("layout", [](const CallTiming& t) { return layout_name(t.layout); })
      .def_ro("weight_bytes", &CallTiming::weight_bytes)
      .def_ro("macs_per_row", &CallTiming::macs_per_row);

  nb::class_<BoundProgram>(m, "Program")
      .def("__init__", [](BoundProgram* self, std::shared_ptr<ThreadPool> pool, const std::string& isa, std::shared_ptr<KvCache> kv,
                          int64_t max_tokens, int64_t max_sequences, int64_t max_logit_rows, int64_t vocab) {
        new (self) BoundProgram(std::move(pool), kernels_for(isa), std::move(kv), Limits{max_tokens, max_sequences, max_logit_rows}, vocab);
      }, "pool"_a, "isa"_a, "kv"_a, "max_tokens"_a, "max_sequences"_a, "max_logit_rows"_a, "vocab"_a)
      .def("buffer", [](BoundProgram& p, bool logits, int64_t dim, bool quantized, float outlier_limit) {
        return p.buffer(logits ? Rows::LOGITS : Rows::TOKENS, dim, quantized, outlier_limit);
      }, "logits"_a, "dim"_a, "quantized"_a, "outlier_limit"_a = 1.0f)
      .def("array", [](BoundProgram& p, int b, int64_t rows) {
        p.check_buffer(b);
        return nb::ndarray<nb::numpy, float, nb::ndim<2>>(p.data(b), {(size_t)std::clamp<int64_t>(rows, 0, p.max_rows(b)), (size_t)p.dim(b)}, nb::find(p));
      }, "buffer"_a, "rows"_a, "The first rows of a buffer as a writable view.")
      .def("embedding", [](BoundProgram& p, const PackedMatrix& table, float scale, int out) {
        p.check_buffer(out);
        if (table.matrix.n < p.vocab() || (p.dim(out) + GROUP - 1) / GROUP * GROUP != table.matrix.k ||
            (is_integer(table.matrix.layout) && p.dim(out) != table.matrix.k))
          throw std::invalid_argument("the table does not fit");
        p.matrices.push_back(table);
        p.embedding(table.matrix, scale, out);
      }, "table"_a, "scale"_a, "out"_a)
      .def("rms_norm", [](BoundProgram& p, int x, Array1<float> weight, float eps, float weight_offset, int heads, int out) {
        p.check_buffer(x), p.check_buffer(out);
        p.rms_norm(x, p.keep(weight, p.dim(x) / std::max(1, heads)), eps, weight_offset, heads, out);
      }, "x"_a, "weight"_a, "eps"_a, "weight_offset"_a, "heads"_a, "out"_a)
      .def("linear", [](BoundProgram& p, int x, const PackedMatrix& w, std::optional<Array1<float>> bias, int residual, int out) {
        p.check_buffer(x), p.check_buffer(out);
        if (residual >= 0) p.check_buffer(residual);
        p.matrices.push_back(w);
        p.linear(x, w.matrix, bias ? p.keep(*bias, w.matrix.n) : nullptr, residual, out);
      }, "x"_a, "w"_a, "bias"_a.none(), "residual"_a, "out"_a)
      .def("rope_angles", [](BoundProgram& p, std::vector<double> frequencies, float magnitude, double growth, int period, int out) {
        p.check_buffer(out);
        if (p.dim(out) != 2 * (int64_t)frequencies.size()) throw std::invalid_argument("angles take two values a frequency");
        p.rope_angles(std::move(frequencies), magnitude, growth, period, out);
      }, "frequencies"_a, "magnitude"_a, "growth"_a, "period"_a, "out"_a)
      .def("rope", [](BoundProgram& p, int x, int heads, int head_dim, int dim, bool interleaved, int angles) {
        p.check_buffer(x), p.check_buffer(angles);
        if (heads <= 0 || dim <= 0 || dim % 2 || dim > head_dim || (int64_t)heads * head_dim != p.dim(x) || p.dim(angles) != dim)
          throw std::invalid_argument("heads and angles do not fit the buffer");
        p.rope(x, heads, head_dim, dim, interleaved, angles);
      }, "x"_a, "heads"_a, "head_dim"_a, "dim"_a, "interleaved"_a, "angles"_a)
      .def("kv_store", [](BoundProgram& p, int k, int v, int layer) {
        p.check_buffer(k), p.check_buffer(v);
        p.kv_store(k, v, layer);
      }, "k"_a, "v"_a, "layer"_a)
      .def("attention", [](BoundProgram& p, int q, int heads, float scale, int window, float softcap, std::optional<Array1<float>> sinks,
                           int layer, int out) {
        p.check_buffer(q), p.check_buffer(out);
        p.attention(q, heads, scale, window, softcap, sinks ? p.keep(*sinks, heads) : nullptr, layer, out);
      }, "q"_a, "heads"_a, "scale"_a, "window"_a, "softcap"_a, "sinks"_a.none(), "layer"_a, "out"_a)
      .def("gated", [](BoundProgram& p, const std::string& activation, int gate, int up, int out) {
        p.check_buffer(gate), p.check_buffer(up), p.check_buffer(out);
        p.gated(activation_of(activation), gate, up, out);
      }, "activation"_a, "gate"_a, "up"_a, "out"_a)
      .def("softcap", [](BoundProgram& p, int x, float cap, int out) {
        p.check_buffer(x), p.check_buffer(out);
        p.softcap(x, cap, out);
      }, "x"_a, "cap"_a, "out"_a)
      .def("sigmoid_mul", [](BoundProgram& p, int gate, int x, int out) {
        p.check_buffer(gate), p.check_buffer(x), p.check_buffer(out);
        p.sigmoid_mul(gate, x, out);
      }, "gate"_a, "x"_a, "out"_a)
      .def("lora", [](BoundProgram& p, int x, std::vector<std::optional<std::tuple<PackedMatrix, PackedMatrix, float>>> adapters, int out) {
        p.check_buffer(x), p.check_buffer(out);
        std::vector<LowRank> layer;
        for (const auto& adapter : adapters) {
          layer.emplace_back();
          if (!adapter) continue;
          const auto& [a, b, scale] = *adapter;
          layer.back() = {a.matrix, b.matrix, scale};
          p.matrices.push_back(a), p.matrices.push_back(b);
        }
        p.lora(x, std::move(layer), out);
      }, "x"_a, "adapters"_a, "out"_a)
      .def("add", [](BoundProgram& p, int a, int b, int out) {
        p.check_buffer(a), p.check_buffer(b), p.check_buffer(out);
        p.add(a, b, out);
      }, "a"_a, "b"_a, "out"_a)
      .def("gather_columns", [](BoundProgram& p, int x, const Array1<int32_t>& columns, int out) {
        p.check_buffer(x), p.check_buffer(out);
        p.gather_columns(x, {columns.data(), columns.data() + columns.size()}, out);
      }, "x"_a, "columns"_a, "out"_a)
      .def("gather_logit_rows", [](BoundProgram& p, int x, int out) {
        p.check_buffer(x), p.check_buffer(out);
        p.gather_logit_rows(x, out);
      }, "x"_a, "out"_a)
      .def("route", [](BoundProgram& p, int scores, std::optional<Array1<float>> correction, int chosen, const std::string& scoring,
                       bool normalize, float scale, int out) {
        p.check_buffer(scores), p.check_buffer(out);
        p.route(scores, correction ? p.keep(*correction, p.dim(scores)) : nullptr, chosen,
                named<Scoring>(scoring, {"softmax", "sigmoid", "softmax_of_chosen"}, "scoring"), normalize, scale, out);
      }, "scores"_a, "correction"_a.none(), "chosen"_a, "scoring"_a, "normalize"_a, "scale"_a, "out"_a)
      .def("experts", &add_experts, "x"_a, "weights"_a, "experts"_a, "activation"_a, "chosen"_a, "out"_a)
      .def("run", &run_program, "tokens"_a, "positions"_a, "row_starts"_a, "block_tables"_a, "logit_rows"_a, "only"_a = -1, "adapters"_a.none() = nb::none(), "states"_a = false,
           "Run one step; releases the GIL.")
      .def("begin_states", &BoundProgram::begin_states)
      .def_prop_ro("calls", &BoundProgram::calls)
      .def_prop_ro("calls_without_states", &BoundProgram::calls_without_states)
      .def_prop_ro("nbytes", &BoundProgram::bytes)
      .def("set_timing", &BoundProgram::set_timing, "on"_a)
      .def("timings", &BoundProgram::timings);

  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", [](Sampler* self, std::shared_ptr<ThreadPool> pool, const std::string& isa, int64_t vocab) {
        new (self) Sampler(std::move(pool), kernels_for(isa), vocab);
      }, "pool"_a, "isa"_a, "vocab"_a)
      .def("run", &run_sampler, "logits"_a.noconvert(), "temperature"_a, "top_p"_a, "min_p"_a, "top_k"_a, "seed"_a, "choice"_a, "position"_a,
           "num_top"_a, "target"_a, "out_tokens"_a.noconvert(), "out_logprobs"_a.noconvert(), "out_top_tokens"_a.noconvert(), "out_top_logprobs"_a.noconvert(),
           "frequency_penalty"_a.none() = nb::none(), "presence_penalty"_a.none() = nb::none(), "repetition_penalty"_a.none() = nb::none(),
           "prompt_tokens"_a.none() = nb::none(), "prompt_offsets"_a.none() = nb::none(), "output_tokens"_a.none() = nb::none(),
           "output_offsets"_a.none() = nb::none(), "bias_tokens"_a.none() = nb::none(), "bias_values"_a.none() = nb::none(),
           "bias_offsets"_a.none() = nb::none(), "masks"_a.none() = nb::none(), "mask_rows"_a.none() = nb::none(), "typical_p"_a.none() = nb::none(), "Sample rows of logits, which are overwritten; releases the GIL.");
}
