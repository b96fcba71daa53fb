// A folder for one test, benchmark or world, under the system's folder for temporary files; gone,
// with its content, in the end. For tests and the harness; core itself leaves no files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "tpsync/base/errors.h"

namespace tpsync {

class TemporaryFolder {
 public:
  // Its name begins with `name`. Throws RuntimeBroken kIo if it can't be made.
  explicit TemporaryFolder(const std::string& name = "tpsync") {
    std::error_code error;
    std::string pattern = std::filesystem::temp_directory_path(error) / (name + "-XXXXXX");
    if (error) throw_broken(ErrorKind::kIo, "TMPDIR", "names no folder");
    if (mkdtemp(pattern.data()) == nullptr)
      throw_broken(ErrorKind::kIo, pattern, "this folder can't be made");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tpsync
