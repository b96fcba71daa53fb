// The table of faults/README.md that says what stands here for what people have reported: each row
// names public reports, and faults and scenarios that exist, or a reason why it cannot occur.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "conformance/scenarios/scenario.h"
#include "faults/catalogue.h"

namespace tpsync::conformance {
namespace {

std::string between(const std::string& text, const std::string& marker) {
  const std::size_t begin = text.find(marker);
  const std::size_t end = text.find(marker, begin + marker.size());
  if (begin == std::string::npos || end == std::string::npos) return {};
  return text.substr(begin + marker.size(), end - begin - marker.size());
}

// The three cells of each row, without the head.
std::vector<std::vector<std::string>> report_rows() {
  std::ifstream stream(std::string(TPSYNC_SOURCE_DIR) + "/faults/README.md");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::istringstream lines(between(text, "<!-- reports-table -->"));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(cell);
    if (cells.size() == 4) rows.emplace_back(cells.begin() + 1, cells.end());
  }
  if (rows.size() > 2) rows.erase(rows.begin(), rows.begin() + 2);
  return rows;
}

std::vector<std::string> quoted(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t begin = text.find('`'); begin != std::string::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    names.push_back(text.substr(begin + 1, end - begin - 1));
    begin = end == std::string::npos ? end : text.find('`', end + 1);
  }
  return names;
}

TEST(Reports, EachIsAFaultOrAScenarioOrCannotOccurForAStatedReason) {
  const auto rows = report_rows();
  EXPECT_EQ(rows.size(), 36u);
  for (const auto& row : rows) {
    EXPECT_NE(row[0].find('#'), std::string::npos) << row[0];
    EXPECT_NE(row[0].find('/'), std::string::npos) << row[0];
    const auto names = quoted(row[2]);
    EXPECT_TRUE(!names.empty() || row[2].find("cannot occur: ") != std::string::npos) << row[0];
    for (const std::string& name : names) {
      EXPECT_TRUE(faults::find_kind(name) != nullptr || scenario_named(name)) << name;
    }
  }
}

TEST(Reports, EveryPageThatCitesAPublicReportCitesOneOfTheTable) {
  std::string cited;
  for (const auto& row : report_rows()) cited += row[0] + ",";
  for (const faults::FaultKind& kind : faults::catalogue()) {
    const std::string text(kind.counterpart);
    const std::size_t begin = text.find("(reported in ");
    if (begin == std::string::npos) continue;
    const std::size_t first = begin + std::string("(reported in ").size();
    const std::string report = text.substr(first, text.find_first_of(" ,:)", first) - first);
    EXPECT_NE(cited.find(report), std::string::npos) << kind.name << " cites " << report;
  }
}

}  // namespace
}  // namespace tpsync::conformance
