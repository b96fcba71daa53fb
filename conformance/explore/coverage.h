// Which fault took effect in which phase of which kind of rank, and how often; and for every other
// combination, why there is nothing to count.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faults/catalogue.h"
#include "faults/enumerate.h"

namespace tpsync::conformance {

// "rank 0", "other actor", "runtime", "worker"
std::string rank_role(std::string_view role, int rank);

class Coverage {
 public:
  struct Cell {
    std::uint64_t applicable = 0;  // single faults
    std::uint64_t runs = 0;        // in which it took effect
  };
  using Row = std::pair<std::string, std::string>;  // rank role, phase

  // A fault-free run: its phases are rows, its single faults what applies.
  void add_world(const std::vector<faults::Operation>& operations,
                 const std::vector<faults::Pair>& singles);
  void count(const faults::Fault& fault);
  // Adds the other's counts; of what applies the larger, since the worlds are the same.
  void merge(const Coverage& other);

  const std::map<Row, std::map<std::string, Cell>>& rows() const { return rows_; }
  Cell& cell(const Row& row, const std::string& fault) { return rows_[row][fault]; }
  void add_row(const Row& row) { rows_[row]; }
  // Cells to which a fault applies, and those of them with a run.
  std::uint64_t applicable() const;
  std::uint64_t covered() const;

  // The count, or "not applicable: " and the reason, of any fault of the catalogue.
  std::string text(const Row& row, const faults::FaultKind& kind) const;

 private:
  std::map<Row, std::map<std::string, Cell>> rows_;
};

}  // namespace tpsync::conformance
