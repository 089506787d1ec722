// One pool of fixed-size blocks for all layers: block b of layer l holds `block_size` positions of every kv head.
#pragma once

#include "kernels/kernels.h"
#include "memory.h"

namespace tt {

class KvCache {
 public:
  KvCache(KvType type, int64_t layers, int64_t blocks, int32_t block_size, int32_t heads, int32_t head_dim);
  KvLayer layer(int64_t l) const;
  int64_t layers() const { return layers_; }
  int64_t blocks() const { return blocks_; }
  int32_t block_size() const { return block_size_; }
  int32_t heads() const { return heads_; }
  int32_t head_dim() const { return head_dim_; }
  size_t bytes() const { return memory_.size(); }

 private:
  KvType type_;
  int64_t layers_, blocks_;
  int32_t block_size_, heads_, head_dim_;
  Memory memory_;
};

}  // namespace tt
