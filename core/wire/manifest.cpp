// The hash input is written as text into a small buffer that is flushed into SHA-256; no document
// is ever built. Names are kept in one run of characters, only to find duplicates at the end.
#include "tpsync/wire/manifest.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

// Small enough that many builders at once cost little.
constexpr std::size_t kFlushBytes = 640;
constexpr std::size_t kTextBytesReserved = 1000;
constexpr std::size_t kNamesReserved = 32;
constexpr std::size_t kHashBytes = 32;
constexpr std::size_t kDuplicatesShownMax = 8;
constexpr std::string_view kHexDigits = "0123456789abcdef";

void check(int openssl_result) {
  if (openssl_result != 1) {
    throw_broken(ErrorKind::kInternal, "sha256", "the cryptography library refused an operation");
  }
}

// The code point that begins at text[position], which moves behind it; nullopt if the bytes there
// are not UTF-8 (overlong forms and surrogates included).
std::optional<std::uint32_t> next_code_point(std::string_view text, std::size_t& position) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t first = byte_at(position++);
  if (first < 0x80) return first;
  std::size_t more = 0;
  std::uint32_t smallest = 0;
  std::uint32_t value = 0;
  if ((first & 0xe0) == 0xc0) {
    more = 1, smallest = 0x80, value = first & 0x1f;
  } else if ((first & 0xf0) == 0xe0) {
    more = 2, smallest = 0x800, value = first & 0x0f;
  } else if ((first & 0xf8) == 0xf0) {
    more = 3, smallest = 0x10000, value = first & 0x07;
  } else {
    return std::nullopt;
  }
  if (text.size() - position < more) return std::nullopt;
  for (std::size_t i = 0; i < more; ++i) {
    const std::uint32_t next = byte_at(position++);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    value = value << 6 | (next & 0x3f);
  }
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < smallest || value > 0x10ffff || surrogate) return std::nullopt;
  return value;
}

// Printable ASCII that JSON takes as it is: every real tensor name.
bool is_plain(std::string_view text) {
  // Without a branch, so that the loop becomes vector instructions.
  unsigned char other = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    other |=
        static_cast<unsigned char>((byte < ' ') | (byte > '~') | (byte == '"') | (byte == '\\'));
  }
  return other == 0;
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (!next_code_point(text, i)) return false;
  }
  return true;
}

void append_unit(std::string& out, std::uint32_t unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHexDigits[(unit >> shift) & 0xf];
}

// `text` is UTF-8; `plain` says that it needs no escape.
void append_json_text(std::string& out, std::string_view text, bool plain) {
  out += '"';
  if (plain) {
    out += text;
    out += '"';
    return;
  }
  for (std::size_t i = 0; i < text.size();) {
    const std::uint32_t point = *next_code_point(text, i);
    switch (point) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (point >= 0x10000) {
          append_unit(out, 0xd800 + ((point - 0x10000) >> 10));
          append_unit(out, 0xdc00 + ((point - 0x10000) & 0x3ff));
        } else if (point < 0x20 || point >= 0x7f) {
          append_unit(out, point);
        } else {
          out += static_cast<char>(point);
        }
    }
  }
  out += '"';
}

template <typename Integer>
void append_integer(std::string& out, Integer value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

[[noreturn]] void refuse(std::uint64_t index, std::string_view field, std::string_view detail) {
  throw_invalid(ErrorKind::kProtocol, fmt::format("tensors[{}].{}", index, field), detail);
}

}  // namespace

struct ManifestBuilder::State {
  struct Name {
    std::uint64_t hash;
    std::size_t offset;
    std::size_t size;
  };
  struct ContextDeleter {
    void operator()(EVP_MD_CTX* freed) const noexcept { EVP_MD_CTX_free(freed); }
  };

  std::unique_ptr<EVP_MD_CTX, ContextDeleter> context{EVP_MD_CTX_new()};
  std::string text;   // of the hash input, not yet hashed
  std::string names;  // all of them, one behind the other
  std::vector<Name> index;
  std::uint64_t tensor_count = 0;
  std::uint64_t byte_count = 0;
  bool hashing = false;  // the context has begun: done late, as most builders are used once

  State() {
    if (context == nullptr) {
      throw_broken(ErrorKind::kOutOfMemory, "sha256", "no context could be allocated");
    }
    text.reserve(kTextBytesReserved);
    names.reserve(kTextBytesReserved);
    index.reserve(kNamesReserved);
    restart();
  }

  void restart() {
    hashing = false;
    text.clear();
    text += '[';
    names.clear();
    index.clear();
    tensor_count = 0;
    byte_count = 0;
  }

  void flush() {
    if (!hashing) check(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr));
    hashing = true;
    check(EVP_DigestUpdate(context.get(), text.data(), text.size()));
    text.clear();
  }

  std::string_view name_at(const Name& name) const {
    return std::string_view(names).substr(name.offset, name.size);
  }

  // By hash first: names of one model share long beginnings.
  std::vector<std::string_view> duplicates() {
    std::sort(index.begin(), index.end(), [this](const Name& a, const Name& b) {
      return a.hash != b.hash ? a.hash < b.hash : name_at(a) < name_at(b);
    });
    std::vector<std::string_view> found;
    for (std::size_t i = 1; i < index.size(); ++i) {
      if (index[i].hash != index[i - 1].hash) continue;
      const std::string_view name = name_at(index[i]);
      if (name == name_at(index[i - 1]) && (found.empty() || found.back() != name)) {
        found.push_back(name);
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

ManifestBuilder::ManifestBuilder() : state_(std::make_unique<State>()) {}
ManifestBuilder::~ManifestBuilder() = default;
ManifestBuilder::ManifestBuilder(ManifestBuilder&&) noexcept = default;
ManifestBuilder& ManifestBuilder::operator=(ManifestBuilder&&) noexcept = default;

void ManifestBuilder::add(const TensorRecord& record) {
  State& state = *state_;
  const std::uint64_t index = state.tensor_count;
  if (record.name.empty()) refuse(index, "name", "is empty");
  const bool plain_name = is_plain(record.name);
  if (!plain_name && !is_utf8(record.name)) refuse(index, "name", "is not UTF-8");
  std::optional<std::uint64_t> product = 1;
  for (const std::int64_t dimension : record.shape) {
    if (dimension < 0) {
      refuse(index, "shape", fmt::format("{} has the dimension {}", record.name, dimension));
    }
    // A zero dimension makes the product zero, whatever the others are.
    if (dimension == 0) {
      product = 0;
    } else if (product) {
      product = checked_mul(*product, static_cast<std::uint64_t>(dimension));
    }
  }
  if (!product || record.numel != *product) {
    refuse(index, "numel",
           fmt::format("{} has numel {}, its shape has {}", record.name, record.numel,
                       product ? std::to_string(*product) : std::string("more than 2^64")));
  }
  if (record.dtype.empty()) refuse(index, "dtype", record.name + " has no dtype");
  const bool plain_dtype = is_plain(record.dtype);
  if (!plain_dtype && !is_utf8(record.dtype))
    refuse(index, "dtype", record.name + ": is not UTF-8");
  const auto byte_count = checked_add(state.byte_count, record.nbytes);
  if (!byte_count) refuse(index, "nbytes", "the bytes of all tensors exceed 2^64");

  std::string& text = state.text;
  text += index == 0 ? "{\"dtype\":" : ",{\"dtype\":";
  append_json_text(text, record.dtype, plain_dtype);
  text += ",\"name\":";
  append_json_text(text, record.name, plain_name);
  text += ",\"nbytes\":";
  append_integer(text, record.nbytes);
  text += ",\"numel\":";
  append_integer(text, record.numel);
  text += ",\"shape\":[";
  for (std::size_t i = 0; i < record.shape.size(); ++i) {
    if (i > 0) text += ',';
    append_integer(text, record.shape[i]);
  }
  text += "]}";
  if (text.size() >= kFlushBytes) state.flush();

  const std::uint64_t hash = XXH3_64bits(record.name.data(), record.name.size());
  state.index.push_back({hash, state.names.size(), record.name.size()});
  state.names += record.name;
  state.tensor_count += 1;
  state.byte_count = *byte_count;
}

std::uint64_t ManifestBuilder::tensor_count() const { return state_->tensor_count; }

Manifest ManifestBuilder::finish() {
  State& state = *state_;
  const std::vector<std::string_view> duplicates = state.duplicates();
  if (!duplicates.empty()) {
    std::string detail = "these names appear more than once:";
    for (std::size_t i = 0; i < duplicates.size() && i < kDuplicatesShownMax; ++i) {
      detail += ' ';
      detail += duplicates[i];
    }
    state.restart();
    throw_invalid(ErrorKind::kProtocol, "tensors", detail);
  }
  state.text += ']';
  state.flush();
  std::array<unsigned char, kHashBytes> hash{};
  check(EVP_DigestFinal_ex(state.context.get(), hash.data(), nullptr));
  Manifest manifest;
  manifest.tensor_count = state.tensor_count;
  manifest.byte_count = state.byte_count;
  manifest.fingerprint.reserve(2 * hash.size());
  for (const unsigned char byte : hash) {
    manifest.fingerprint += kHexDigits[byte >> 4];
    manifest.fingerprint += kHexDigits[byte & 0xf];
  }
  state.restart();
  return manifest;
}

Manifest build_manifest(std::span<const TensorRecord> records) {
  ManifestBuilder builder;
  for (const TensorRecord& record : records) builder.add(record);
  return builder.finish();
}

bool is_fingerprint(std::string_view text) {
  return text.size() == 2 * kHashBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace tpsync::wire
