// All single faults of a fault-free run: every operation with every fault of the catalogue that
// applies there, in the order of the operations, then of the catalogue, then of its variants.
#pragma once

#include <cstddef>
#include <vector>

#include "faults/catalogue.h"

namespace tpsync::faults {

// Fills in what an operation's row rules need to know of the others: digested, is_tail,
// is_first_to_peer, ends_gather and workers.
// `operations` are those of one publication, in the order of the trace.
void annotate(std::vector<Operation>& operations);

// Inserts the moments that are no operations of a seam. Idempotent.
// - One source.begin per actor that allocates a packed buffer, just before its first operation in
//   that phase.
// - One engine.layer per worker, just before its reply to the last update; one engine.reset_cache,
//   just before its reply to finish.
void add_own_moments(std::vector<Operation>& operations);

struct Pair {
  std::size_t operation = 0;  // index
  const FaultKind* kind = nullptr;
  Fault fault;
  Demand demand = Demand::kFail;
  std::vector<ErrorKind> kinds;
};

// `operations` are annotated. Two operations with one moment are two pairs with equal faults.
std::vector<Pair> enumerate(const std::vector<Operation>& operations);

}  // namespace tpsync::faults
