// How commands speak: progress and verdict tables on standard error; a command's answer, or its
// JSON, on standard output; traces and results as files in a folder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tpsync::conformance {

// Aligned columns; the first row is the head.
std::string table(const std::vector<std::vector<std::string>>& rows);

// The same for rows that come one by one, under columns of known widths. A longer cell shifts the
// rest of its row.
std::string table_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths);

// To standard error, at once.
void say(const std::string& line);

// The same, as one line that begins with the program's name, whatever the text contains.
void complain(const std::string& text);

// As one argument of a shell command.
std::string quoted(const std::string& argument);

// Indented; bytes that are no UTF-8 (of a path) become replacement characters.
std::string dumped(const nlohmann::ordered_json& json);

// The content of a file that the user named; UsageError with the path if it cannot be read.
std::string read_file(const std::string& path);

// Where a command leaves files: the folder of --out, or tpsync-out.
class OutFolder {
 public:
  // `given` is the value of --out, empty if there is none. If there is one it is tried at once:
  // UsageError naming --out, with kExitHarness, if the folder cannot be made or written.
  explicit OutFolder(const std::string& given);

  bool given() const { return given_; }
  // Makes the folder where it is missing and writes a file; false, with a warning, if that fails.
  // files() lists what was written.
  bool write(const std::string& name, const std::string& content);
  const std::vector<std::string>& files() const { return files_; }
  // A file that --out asked for is missing: the command must not end as if it were there.
  bool lost() const { return lost_; }

 private:
  std::string folder_;
  bool given_ = false;
  bool lost_ = false;
  std::vector<std::string> files_;
};

}  // namespace tpsync::conformance
