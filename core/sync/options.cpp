#include "tpsync/sync/options.h"

#include <algorithm>

#include "tpsync/base/errors.h"
#include "tpsync/sync/publication_target.h"

namespace tpsync::sync {

void check_options(const SyncOptions& options) {
  const auto refuse = [](std::string_view subject, std::string_view detail) {
    throw_invalid(ErrorKind::kInvalidConfig, subject, detail);
  };
  if (options.bucket_bytes == 0) refuse("bucket_bytes", "must be greater than 0");
  if (options.control_timeout <= Duration::zero()) {
    refuse("control_timeout", "must be greater than 0");
  }
  if (options.route == wire::Route::kReshard && options.layout == wire::Layout::kCompact) {
    refuse("route", "reshard needs the layout rank_major, not compact");
  }
  if (options.adapter_name && *options.adapter_name != "default" && !options.lora_merged) {
    refuse("adapter_name", "an adapter other than \"default\" needs lora_merged");
  }
  for (std::size_t i = 0; i < options.name_remap.size(); ++i) {
    const auto& [pattern, replacement] = options.name_remap[i];
    if (std::count(pattern.begin(), pattern.end(), '*') != 1) {
      refuse("name_remap", "the pattern \"" + pattern + "\" needs exactly one *");
    }
    if (replacement && std::count(replacement->begin(), replacement->end(), '*') != 1) {
      refuse("name_remap", "the replacement \"" + *replacement + "\" needs exactly one *");
    }
    if (pattern == "*" && i + 1 != options.name_remap.size()) {
      refuse("name_remap", "a bare * must be the last pattern");
    }
  }
  if (options.last_committed_version < 0) {
    refuse("last_committed_version", "must not be negative");
  }
  if (options.last_committed_version > kCommittedVersionMax) {
    refuse("last_committed_version", "leaves no version above it");
  }
}

DType parse_wire_dtype(const std::string& text) {
  std::string lower = text;
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (lower == "bf16" || lower == "bfloat16") return DType::kBFloat16;
  if (lower == "fp16" || lower == "float16" || lower == "half") return DType::kFloat16;
  if (lower == "fp32" || lower == "float32" || lower == "float") return DType::kFloat32;
  throw_invalid(ErrorKind::kInvalidConfig, "wire_dtype",
                "is \"" + text + "\"; use bfloat16, float16 or float32");
}

}  // namespace tpsync::sync
