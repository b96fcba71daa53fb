// How commands speak: progress and verdict tables on standard error; a command's answer, or its
// JSON, on standard output.
#pragma once

#include <string>
#include <vector>

namespace tpsync::conformance {

// Aligned columns; the first row is the head.
std::string table(const std::vector<std::vector<std::string>>& rows);

// To standard error, at once.
void say(const std::string& line);

// Creates the folder (UsageError naming --out if it cannot) and writes a file in it; returns its
// path.
std::string write_file(const std::string& folder, const std::string& name,
                       const std::string& content);

}  // namespace tpsync::conformance
