#include "tpsync/transfer/content_digest.h"

#include "tpsync/base/errors.h"
#include "tpsync/model/plan.h"

namespace tpsync::transfer {

wire::ExpectedDigest expected_digest(std::span<const wire::TensorRecord> tensors,
                                     std::span<const std::uint64_t> sums) {
  TPSYNC_ASSERT(tensors.size() == sums.size());
  wire::ExpectedDigest digest;
  digest.tensors.reserve(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const model::RowsCols shape = model::rows_cols(tensors[t]);
    digest.tensors.push_back({shape.rows, shape.cols, sums[t]});
  }
  return digest;
}

}  // namespace tpsync::transfer
