#include "conformance/command/output.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "conformance/command/usage.h"
#include "tpsync/base/bytes.h"

namespace tpsync::conformance {

namespace {

constexpr std::size_t kReadMaxBytes = kGiB;

bool write_whole(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  return !file.fail();
}

}  // namespace

std::string table_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) {
    line += row[c];
    if (c + 1 == row.size()) break;
    const std::size_t width = std::max(c < widths.size() ? widths[c] : 0, row[c].size());
    line += std::string(width - row[c].size() + 2, ' ');
  }
  return line + "\n";
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) text += table_row(row, widths);
  return text;
}

void say(const std::string& line) {
  std::fputs(line.c_str(), stderr);
  if (line.empty() || line.back() != '\n') std::fputc('\n', stderr);
  std::fflush(stderr);
}

void complain(const std::string& text) {
  std::string line = "tpsync: " + text;
  for (char& c : line) c = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  say(line);
}

std::string quoted(const std::string& argument) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
    return argument;
  }
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw UsageError{path + ": cannot be read; give a file that exists"};
  std::string text;
  std::vector<char> part(std::size_t{1} << 16);
  // read() reports failures in the stream's state, whereas stream iterators throw.
  while (stream) {
    stream.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kReadMaxBytes) throw UsageError{path + ": is larger than 1 GiB"};
  }
  if (stream.bad()) throw UsageError{path + ": cannot be read; give a file, no folder"};
  return text;
}

OutFolder::OutFolder(const std::string& given)
    : folder_(given.empty() ? "tpsync-out" : given), given_(!given.empty()) {
  if (!given_) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::string probe = (std::filesystem::path(folder_) / ".tpsync-probe").string();
  if (!write_whole(probe, "")) {
    throw UsageError{"--out: " + folder_ + " cannot be written; name a writable folder",
                     kExitHarness};
  }
  std::filesystem::remove(probe, error);
}

bool OutFolder::write(const std::string& name, const std::string& content) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::string path = (std::filesystem::path(folder_) / name).string();
  if (!write_whole(path, content)) {
    complain(path + " cannot be written");
    lost_ |= given_;
    return false;
  }
  files_.push_back(path);
  return true;
}

}  // namespace tpsync::conformance
