#include "tpsync/transfer/chunk_plan.h"

#include <string>

#include "tpsync/base/bytes.h"
#include "tpsync/base/dtype.h"
#include "tpsync/base/errors.h"

namespace tpsync::transfer {

std::vector<Chunk> plan_chunks(std::span<const wire::TensorRecord> tensors,
                               std::uint64_t bucket_bytes) {
  if (tensors.empty()) {
    throw_invalid(ErrorKind::kInvalidConfig, "tensors", "the model has no tensors to publish");
  }
  std::vector<Chunk> chunks;
  Chunk current;
  for (std::uint64_t i = 0; i < tensors.size(); ++i) {
    const wire::TensorRecord& tensor = tensors[i];
    const auto dtype = dtype_from_torch(tensor.dtype);
    if (!dtype) {
      throw_invalid(ErrorKind::kInvalidConfig, tensor.name, "unknown dtype " + tensor.dtype);
    }
    if (tensor.nbytes > bucket_bytes) {
      throw_invalid(ErrorKind::kInvalidConfig, tensor.name,
                    "needs " + std::to_string(tensor.nbytes) + " bytes, the bucket has " +
                        std::to_string(bucket_bytes) + "; enlarge the bucket");
    }
    const bool fits = tensor.nbytes <= bucket_bytes - current.bytes;
    const bool aligned = tensor.nbytes == 0 || current.bytes % item_size(*dtype) == 0;
    if (current.count > 0 && (!fits || !aligned)) {
      chunks.push_back(current);
      current = Chunk{i, 0, 0};
    }
    current.count += 1;
    current.bytes += tensor.nbytes;
  }
  chunks.push_back(current);
  return chunks;
}

std::vector<Chunk> chunks_from_counts(std::span<const wire::TensorRecord> tensors,
                                      std::span<const std::uint64_t> counts) {
  std::vector<Chunk> chunks;
  std::uint64_t next = 0;
  for (std::uint64_t c = 0; c < counts.size(); ++c) {
    if (counts[c] == 0 || counts[c] > tensors.size() - next) {
      throw_violation(ErrorKind::kProtocol, "chunk_tensor_counts[" + std::to_string(c) + "]",
                      std::to_string(counts[c]) + " tensors, with " +
                          std::to_string(tensors.size() - next) + " left in the plan");
    }
    Chunk chunk{next, counts[c], 0};
    for (std::uint64_t i = 0; i < chunk.count; ++i) chunk.bytes += tensors[next + i].nbytes;
    chunks.push_back(chunk);
    next += chunk.count;
  }
  if (next != tensors.size()) {
    throw_violation(ErrorKind::kProtocol, "chunk_tensor_counts",
                    "cover " + std::to_string(next) + " tensors, the plan has " +
                        std::to_string(tensors.size()));
  }
  return chunks;
}

}  // namespace tpsync::transfer
