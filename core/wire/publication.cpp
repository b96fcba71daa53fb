// The checks of header, receipts and result, in the order that publication.h promises. The content
// digest is compared without any knowledge of the TP layout: the receipts' rectangles are sorted
// once, equal ones must agree, and the distinct ones of a tensor must tile it and add up.
#include "tpsync/wire/publication.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

[[noreturn]] void malformed(std::string_view subject, std::string_view detail) {
  throw_violation(ErrorKind::kProtocol, subject, detail);
}

[[noreturn]] void mismatch(std::string_view subject, std::string_view detail) {
  throw_violation(ErrorKind::kMismatch, subject, detail);
}

std::string receipt_field(std::size_t index, std::string_view field) {
  return fmt::format("receipts[{}].{}", index, field);
}

void require_equal(std::int64_t found, std::int64_t expected, std::string_view subject) {
  if (found != expected) mismatch(subject, fmt::format("is {}, expected {}", found, expected));
}

// Texts from a peer are compared, never repeated: they may hold anything. `expected` is ours.
void require_equal(std::string_view found, std::string_view expected, std::string_view subject) {
  if (found != expected) mismatch(subject, fmt::format("is not \"{}\"", expected));
}

// The same for a field of receipt `index`, whose name is put together for a refusal only.
template <typename Value>
void require_equal(const Value& found, const Value& expected, std::size_t index,
                   std::string_view field) {
  if (found != expected) require_equal(found, expected, receipt_field(index, field));
}

void validate_transport(std::string_view transport, std::span<const Route> routes) {
  const auto route = route_of_transport(transport);
  if (route && std::find(routes.begin(), routes.end(), *route) != routes.end()) return;
  std::string accepted;
  for (const Route one : routes) {
    accepted += fmt::format("{}\"{}\"", accepted.empty() ? "" : " or ", transport_of(one));
  }
  mismatch("transport", fmt::format("is not {}", accepted));
}

void validate_uuids(std::span<const std::string> uuids, std::int64_t world) {
  if (uuids.size() != static_cast<std::uint64_t>(world)) {
    mismatch("device_uuids", fmt::format("has {} entries for {} workers", uuids.size(), world));
  }
  const auto subject = [](std::size_t i) { return fmt::format("device_uuids[{}]", i); };
  // As many as there are workers, so every pair can be compared.
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (uuids[i].empty()) malformed(subject(i), "is empty");
    const auto first = std::find(uuids.begin(), uuids.end(), uuids[i]);
    const auto at = static_cast<std::size_t>(first - uuids.begin());
    if (at != i) malformed(subject(i), fmt::format("equals device_uuids[{}]", at));
  }
}

void validate_receipt(const PublicationHeader& header, const WorkerReceipt& receipt,
                      std::size_t index) {
  const auto subject = [index](std::string_view field) { return receipt_field(index, field); };
  if (receipt.tp_rank < 0 || receipt.tp_rank >= header.tp_world_size) {
    malformed(subject("tp_rank"),
              fmt::format("is {}, ranks are 0 to {}", receipt.tp_rank, header.tp_world_size - 1));
  }
  require_equal(receipt.publication_id, header.publication_id, index, "publication_id");
  require_equal(receipt.model_version, header.model_version, index, "model_version");
  require_equal(receipt.tp_world_size, header.tp_world_size, index, "tp_world_size");
  require_equal(receipt.expected_manifest_fingerprint, header.expected_manifest.fingerprint, index,
                "expected_manifest_fingerprint");
  require_equal(receipt.device_uuid, header.device_uuids[static_cast<std::size_t>(receipt.tp_rank)],
                index, "device_uuid");
  if (!receipt.ready) mismatch(subject("ready"), "the worker says that it is not ready");
  if (receipt.resident_parameter_count <= 0) {
    malformed(subject("resident_parameter_count"),
              fmt::format("is {}, must be positive", receipt.resident_parameter_count));
  }
}

void validate_ranks(std::span<const WorkerReceipt> receipts) {
  // As many receipts as ranks, each rank in range: a missing rank shows as a duplicate.
  std::vector<std::size_t> first_of(receipts.size(), receipts.size());
  for (std::size_t i = 0; i < receipts.size(); ++i) {
    std::size_t& first = first_of[static_cast<std::size_t>(receipts[i].tp_rank)];
    if (first != receipts.size()) {
      mismatch(receipt_field(i, "tp_rank"),
               fmt::format("rank {} has answered in receipts[{}]", receipts[i].tp_rank, first));
    }
    first = i;
  }
}

// ---- the content digest

struct Part {
  const DigestPart* part = nullptr;
  std::size_t receipt = 0;
  std::size_t index = 0;  // within its receipt

  auto range() const { return std::tie(part->row0, part->row1, part->col0, part->col1); }
  auto key() const {
    return std::tie(part->tensor, part->row0, part->row1, part->col0, part->col1, receipt, index);
  }
  std::string subject() const { return fmt::format("receipts[{}].digest[{}]", receipt, index); }
  std::string text() const {
    return fmt::format("tensor {} rows {} to {} columns {} to {}", part->tensor, part->row0,
                       part->row1, part->col0, part->col1);
  }
  bool empty() const { return part->row0 == part->row1 || part->col0 == part->col1; }
  // Bounds are checked before, so it cannot exceed the tensor's own element count.
  std::uint64_t area() const { return (part->row1 - part->row0) * (part->col1 - part->col0); }
};

void check_bounds(const Part& part, const ExpectedDigest& digest) {
  const DigestPart& p = *part.part;
  if (p.tensor >= digest.tensors.size()) {
    malformed(part.subject(),
              fmt::format("names tensor {} of {}", p.tensor, digest.tensors.size()));
  }
  const ExpectedDigest::Tensor& tensor = digest.tensors[static_cast<std::size_t>(p.tensor)];
  const bool ordered = p.row0 <= p.row1 && p.col0 <= p.col1;
  if (!ordered || p.row1 > tensor.rows || p.col1 > tensor.cols) {
    malformed(part.subject(), fmt::format("{} is outside the tensor, which has {} rows and {} "
                                          "columns",
                                          part.text(), tensor.rows, tensor.cols));
  }
  if (part.empty() && p.sum != 0) {
    mismatch(part.subject(), fmt::format("{} is empty, its sum is {}", part.text(), p.sum));
  }
}

// True if the rectangles, sorted by range, are bands of equal rows, each split into columns: the
// form of every TP layout.
bool tiles_as_bands(std::span<const Part> parts, const ExpectedDigest::Tensor& tensor) {
  std::uint64_t row = 0;
  std::size_t i = 0;
  while (i < parts.size()) {
    const std::uint64_t band_end = parts[i].part->row1;
    std::uint64_t col = 0;
    for (; i < parts.size() && parts[i].part->row0 == row && parts[i].part->row1 == band_end; ++i) {
      if (parts[i].part->col0 != col) return false;
      col = parts[i].part->col1;
    }
    if (col != tensor.cols) return false;
    row = band_end;
  }
  return row == tensor.rows;
}

// Sweeps over the rows with the column intervals that are open there: throws for the first overlap.
void refuse_overlap(std::span<const Part> parts) {
  std::vector<const Part*> by_end;
  for (const Part& part : parts) by_end.push_back(&part);
  std::sort(by_end.begin(), by_end.end(), [](const Part* a, const Part* b) {
    return std::tuple(a->part->row1, a->key()) < std::tuple(b->part->row1, b->key());
  });
  std::map<std::uint64_t, const Part*> open;  // by first column
  std::size_t ended = 0;
  for (const Part& part : parts) {
    for (; ended < by_end.size() && by_end[ended]->part->row1 <= part.part->row0; ++ended) {
      open.erase(by_end[ended]->part->col0);
    }
    const auto next = open.lower_bound(part.part->col0);
    const Part* other = nullptr;
    if (next != open.end() && next->first < part.part->col1) {
      other = next->second;
    } else if (next != open.begin() && std::prev(next)->second->part->col1 > part.part->col0) {
      other = std::prev(next)->second;
    }
    if (other != nullptr) {
      mismatch(part.subject(), fmt::format("{} overlaps rows {} to {} columns {} to {} of "
                                           "receipts[{}]",
                                           part.text(), other->part->row0, other->part->row1,
                                           other->part->col0, other->part->col1, other->receipt));
    }
    open.emplace(part.part->col0, &part);
  }
}

// The parts of one receipt by tensor, each tensor once, from the first on.
class PartsByTensor {
 public:
  PartsByTensor(const WorkerReceipt& receipt, std::size_t number)
      : digest_(receipt.digest), number_(number) {
    const auto by_tensor = [](const DigestPart& a, const DigestPart& b) {
      return a.tensor < b.tensor;
    };
    if (std::is_sorted(digest_.begin(), digest_.end(), by_tensor)) return;  // as workers send it
    order_.resize(digest_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return digest_[a].tensor < digest_[b].tensor;
    });
  }

  // Adds those of this tensor that are not empty.
  void take(std::uint64_t tensor, std::vector<Part>& parts) {
    for (; next_ < digest_.size(); ++next_) {
      const std::size_t index = order_.empty() ? next_ : order_[next_];
      if (digest_[index].tensor != tensor) return;
      const Part part{&digest_[index], number_, index};
      if (!part.empty()) parts.push_back(part);
    }
  }

 private:
  std::span<const DigestPart> digest_;
  std::size_t number_;
  std::vector<std::size_t> order_;  // empty: as they come
  std::size_t next_ = 0;
};

// `parts` are those of one tensor, sorted, not empty ones; equal ranges stand side by side.
void validate_tensor_digest(std::uint64_t index, const ExpectedDigest::Tensor& tensor,
                            std::span<const Part> parts, std::vector<Part>& distinct) {
  const auto subject = [index] { return fmt::format("digest.tensors[{}]", index); };
  const auto elements = checked_mul(tensor.rows, tensor.cols);
  if (!elements) malformed(subject(), "has more than 2^64 elements");
  distinct.clear();
  std::uint64_t sum = 0;
  std::uint64_t covered = 0;
  for (const Part& part : parts) {
    if (!distinct.empty() && distinct.back().range() == part.range()) {
      const Part& first = distinct.back();
      if (first.part->sum != part.part->sum) {
        mismatch(part.subject(),
                 fmt::format("{} has the sum {}, in receipts[{}] it is {}", part.text(),
                             part.part->sum, first.receipt, first.part->sum));
      }
      continue;
    }
    distinct.push_back(part);
    sum += part.part->sum;
    covered += part.area();
  }
  if (*elements != 0 && !tiles_as_bands(distinct, tensor)) {
    refuse_overlap(distinct);
    // Without an overlap the areas add up exactly.
    if (covered != *elements) {
      mismatch(subject(), fmt::format("tensor {}: the {} ranges of the receipts cover {} of {} "
                                      "elements",
                                      index, distinct.size(), covered, *elements));
    }
  }
  if (sum != tensor.sum) {
    mismatch(subject(),
             fmt::format("tensor {} rows 0 to {} columns 0 to {}: the receipts' {} ranges "
                         "add up to {}, the actors' sum is {}",
                         index, tensor.rows, tensor.cols, distinct.size(), sum, tensor.sum));
  }
}

void validate_digest(const PublicationHeader& header, std::span<const WorkerReceipt> receipts,
                     const ExpectedDigest& digest) {
  if (digest.tensors.size() != header.expected_manifest.tensor_count) {
    mismatch("digest.tensors",
             fmt::format("has {} entries, the manifest has {} tensors", digest.tensors.size(),
                         header.expected_manifest.tensor_count));
  }
  std::vector<PartsByTensor> sorted;
  sorted.reserve(receipts.size());
  for (std::size_t r = 0; r < receipts.size(); ++r) {
    for (std::size_t i = 0; i < receipts[r].digest.size(); ++i) {
      check_bounds({&receipts[r].digest[i], r, i}, digest);
    }
    sorted.emplace_back(receipts[r], r);
  }
  const auto in_order = [](const Part& a, const Part& b) { return a.key() < b.key(); };
  std::vector<Part> parts;
  std::vector<Part> distinct;
  for (std::size_t t = 0; t < digest.tensors.size(); ++t) {
    parts.clear();
    for (PartsByTensor& receipt : sorted) receipt.take(t, parts);
    if (!std::is_sorted(parts.begin(), parts.end(), in_order)) {
      std::sort(parts.begin(), parts.end(), in_order);
    }
    validate_tensor_digest(t, digest.tensors[t], parts, distinct);
  }
}

}  // namespace

void validate_manifest(const Manifest& manifest) {
  if (!is_fingerprint(manifest.fingerprint)) {
    malformed("expected_manifest.fingerprint", "is not 64 lower-case hex digits");
  }
  if (manifest.tensor_count == 0) malformed("expected_manifest.tensor_count", "is 0");
}

std::string_view name_of(Route route) { return route == Route::kGather ? "gather" : "reshard"; }

std::optional<Route> route_from(std::string_view name) {
  for (const Route route : kRoutes) {
    if (name == name_of(route)) return route;
  }
  return std::nullopt;
}

std::string_view transport_of(Route route) {
  return route == Route::kGather ? kTransport : "tpsync_reshard_ipc";
}

std::optional<Route> route_of_transport(std::string_view transport) {
  for (const Route route : kRoutes) {
    if (transport == transport_of(route)) return route;
  }
  return std::nullopt;
}

void validate_header(const PublicationHeader& header, std::int64_t world,
                     std::span<const Route> routes) {
  require_equal(header.protocol_version, kProtocolVersion, "protocol_version");
  validate_transport(header.transport, routes);
  if (header.publication_id.empty()) malformed("publication_id", "is empty");
  if (header.model_version <= 0) {
    malformed("model_version", fmt::format("is {}, must be positive", header.model_version));
  }
  require_equal(header.tp_world_size, world, "tp_world_size");
  if (header.tp_world_size <= 0) {
    malformed("tp_world_size", fmt::format("is {}, must be positive", header.tp_world_size));
  }
  validate_manifest(header.expected_manifest);
  validate_uuids(header.device_uuids, world);
}

void validate_receipts(const PublicationHeader& header, std::span<const WorkerReceipt> receipts,
                       const ExpectedDigest& digest) {
  validate_header(header, header.tp_world_size, kRoutes);
  if (receipts.size() != static_cast<std::uint64_t>(header.tp_world_size)) {
    mismatch("receipts",
             fmt::format("has {} entries for {} workers", receipts.size(), header.tp_world_size));
  }
  for (std::size_t i = 0; i < receipts.size(); ++i) validate_receipt(header, receipts[i], i);
  validate_ranks(receipts);
  if (!digest.tensors.empty()) validate_digest(header, receipts, digest);
}

void validate_result(const PublicationHeader& header, const CommitResult& result, bool flush_cache,
                     const ExpectedDigest& digest) {
  require_equal(result.status, "committed", "status");
  validate_receipts(header, result.worker_receipts, digest);
  require_equal(result.model_version, header.model_version, "model_version");
  if (flush_cache && !result.prefix_cache_reset) {
    mismatch("prefix_cache_reset", "the prefix cache was not reset");
  }
}

}  // namespace tpsync::wire
