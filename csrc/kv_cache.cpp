#include "kv_cache.h"

#include <new>
#include <stdexcept>

namespace tt {

namespace {
size_t pool_bytes(KvType type, int64_t layers, int64_t blocks, int32_t block_size, int32_t heads, int32_t head_dim) {
  if (layers <= 0 || layers > 1 << 16 || blocks <= 0 || blocks > INT32_MAX || heads <= 0 || head_dim <= 0 || head_dim % 16 || head_dim > MAX_HEAD_DIM)
    throw std::invalid_argument("the KV cache needs positive sizes and a head size that is a multiple of 16, at most 1024");
  if (block_size < TILE || SEGMENT % block_size) throw std::invalid_argument("the block size must be 16, 32, 64, 128 or 256");
  KvLayer l{type, nullptr, nullptr, heads, head_dim, block_size};
  size_t bytes = l.block_bytes();
  if (__builtin_mul_overflow(bytes, (size_t)layers, &bytes) || __builtin_mul_overflow(bytes, (size_t)blocks, &bytes))
    throw std::bad_alloc();
  return bytes;
}
}  // namespace

KvCache::KvCache(KvType type, int64_t layers, int64_t blocks, int32_t block_size, int32_t heads, int32_t head_dim)
    : type_(type), layers_(layers), blocks_(blocks), block_size_(block_size), heads_(heads), head_dim_(head_dim),
      // Touched bit by bit while answers stream.
      memory_(pool_bytes(type, layers, blocks, block_size, heads, head_dim), Pages::SMALL) {}

KvLayer KvCache::layer(int64_t l) const {
  KvLayer layer{type_, nullptr, nullptr, heads_, head_dim_, block_size_};
  const size_t bytes = (size_t)blocks_ * layer.block_bytes();
  layer.k = memory_.data() + (size_t)l * bytes;
  layer.v = layer.k + layer.half_bytes();
  return layer;
}

}  // namespace tt
