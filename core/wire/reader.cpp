// The head byte of a MessagePack value says its family and often its size; the ranges below are
// those of the specification. Nothing here copies or allocates, except for the text of an error.
#include "tpsync/wire/reader.h"

#include <fmt/format.h>

#include <bit>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

constexpr std::uint8_t kNil = 0xc0;
constexpr std::uint8_t kNeverUsed = 0xc1;
constexpr std::uint8_t kFalse = 0xc2;
constexpr std::uint8_t kTrue = 0xc3;
constexpr std::uint8_t kBin8 = 0xc4;
constexpr std::uint8_t kBin32 = 0xc6;
constexpr std::uint8_t kExt8 = 0xc7;
constexpr std::uint8_t kExt32 = 0xc9;
constexpr std::uint8_t kFloat32 = 0xca;
constexpr std::uint8_t kFloat64 = 0xcb;
constexpr std::uint8_t kUint8 = 0xcc;
constexpr std::uint8_t kUint64 = 0xcf;
constexpr std::uint8_t kInt8 = 0xd0;
constexpr std::uint8_t kInt64 = 0xd3;
constexpr std::uint8_t kFixExt1 = 0xd4;
constexpr std::uint8_t kFixExt16 = 0xd8;
constexpr std::uint8_t kStr8 = 0xd9;
constexpr std::uint8_t kStr32 = 0xdb;
constexpr std::uint8_t kArray16 = 0xdc;
constexpr std::uint8_t kArray32 = 0xdd;
constexpr std::uint8_t kMap16 = 0xde;
constexpr std::uint8_t kMap32 = 0xdf;

constexpr bool is_positive_fixint(std::uint8_t head) { return head <= 0x7f; }
constexpr bool is_fixmap(std::uint8_t head) { return (head & 0xf0) == 0x80; }
constexpr bool is_fixarray(std::uint8_t head) { return (head & 0xf0) == 0x90; }
constexpr bool is_fixstr(std::uint8_t head) { return (head & 0xe0) == 0xa0; }
constexpr bool is_negative_fixint(std::uint8_t head) { return head >= 0xe0; }
constexpr bool is_between(std::uint8_t head, std::uint8_t first, std::uint8_t last) {
  return head >= first && head <= last;
}
constexpr bool is_integer(std::uint8_t head) {
  return is_positive_fixint(head) || is_negative_fixint(head) || is_between(head, kUint8, kInt64);
}
constexpr bool is_text(std::uint8_t head) {
  return is_fixstr(head) || is_between(head, kStr8, kStr32);
}
constexpr bool is_array(std::uint8_t head) {
  return is_fixarray(head) || head == kArray16 || head == kArray32;
}
constexpr bool is_map(std::uint8_t head) {
  return is_fixmap(head) || head == kMap16 || head == kMap32;
}

std::string_view family_of(std::uint8_t head) {
  if (head == kNil) return "nil";
  if (head == kFalse || head == kTrue) return "a boolean";
  if (is_integer(head)) return "an integer";
  if (head == kFloat32 || head == kFloat64) return "a float";
  if (is_text(head)) return "text";
  if (is_between(head, kBin8, kBin32)) return "bytes";
  if (is_array(head)) return "an array";
  if (is_map(head)) return "a map";
  return "an extension";
}

[[noreturn]] void wrong_type(const Path& path, std::string_view expected, std::uint8_t head) {
  malformed(path, fmt::format("is {}, not {}", family_of(head), expected));
}

// The two's complement value of the low `size` bytes.
std::int64_t sign_extended(std::uint64_t bits, std::size_t size) {
  const int unused = 64 - static_cast<int>(size) * 8;
  return static_cast<std::int64_t>(bits << unused) >> unused;
}

}  // namespace

std::string Path::text() const {
  if (parent_ == nullptr) return "message";
  std::string out;
  append_to(out);
  return out;
}

void Path::append_to(std::string& out) const {
  if (parent_ == nullptr) return;
  parent_->append_to(out);
  if (index_ != kNoIndex) {
    out += '[';
    out += std::to_string(index_);
    out += ']';
    return;
  }
  if (!out.empty()) out += '.';
  out += name_;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kShownMax = 64;
  std::string out = "\"";
  for (const char c : text.substr(0, kShownMax)) {
    const bool printable = c >= ' ' && c <= '~' && c != '"';
    out += printable ? c : '?';
  }
  out += text.size() > kShownMax ? "...\"" : "\"";
  return out;
}

void malformed(const Path& path, std::string_view detail) {
  throw_violation(ErrorKind::kProtocol, path.text(), detail);
}

void Reader::fail_at_end(const Path& path) const {
  malformed(path, "the message ends before this value");
}

void Reader::fail_short(std::uint64_t size, const Path& path) const {
  malformed(path, fmt::format("needs {} bytes, the message has {} left", size, remaining()));
}

std::uint64_t Reader::big_endian(std::size_t size, const Path& path) {
  std::uint64_t value = 0;
  for (const std::byte byte : take(size, path)) {
    value = value << 8 | static_cast<std::uint64_t>(byte);
  }
  return value;
}

std::size_t Reader::container(std::uint64_t size, std::uint64_t values_each, const Path& path) {
  // At most 2^32 elements of two values, so the product does not overflow.
  if (size * values_each > remaining()) {
    malformed(path, fmt::format("announces {} elements, the message has {} bytes left", size,
                                remaining()));
  }
  return static_cast<std::size_t>(size);
}

bool Reader::take_nil() {
  if (remaining() == 0 || static_cast<std::uint8_t>(bytes_[position_]) != kNil) return false;
  ++position_;
  return true;
}

bool Reader::boolean(const Path& path) {
  const std::uint8_t first = head(path);
  if (first != kTrue && first != kFalse) wrong_type(path, "a boolean", first);
  return first == kTrue;
}

std::int64_t Reader::integer(const Path& path) {
  const std::uint8_t first = head(path);
  if (is_positive_fixint(first)) return first;
  if (is_negative_fixint(first)) return static_cast<std::int64_t>(first) - 256;
  if (is_between(first, kUint8, kUint64)) {
    const std::uint64_t value = big_endian(std::size_t{1} << (first - kUint8), path);
    if (value > INT64_MAX) malformed(path, fmt::format("is {}, above the signed range", value));
    return static_cast<std::int64_t>(value);
  }
  if (is_between(first, kInt8, kInt64)) {
    const std::size_t size = std::size_t{1} << (first - kInt8);
    return sign_extended(big_endian(size, path), size);
  }
  wrong_type(path, "an integer", first);
}

std::uint64_t Reader::natural(const Path& path) {
  const std::uint8_t first = head(path);
  if (is_positive_fixint(first)) return first;
  if (is_between(first, kUint8, kUint64)) {
    return big_endian(std::size_t{1} << (first - kUint8), path);
  }
  if (!is_integer(first)) wrong_type(path, "an integer", first);
  --position_;
  const std::int64_t value = integer(path);
  if (value < 0) malformed(path, fmt::format("is {}, must not be negative", value));
  return static_cast<std::uint64_t>(value);
}

double Reader::real(const Path& path) {
  const std::uint8_t first = head(path);
  if (first == kFloat64) return std::bit_cast<double>(big_endian(8, path));
  if (first == kFloat32) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(big_endian(4, path)));
  }
  if (!is_integer(first)) wrong_type(path, "a number", first);
  --position_;
  return static_cast<double>(integer(path));
}

std::string_view Reader::text(const Path& path) {
  const std::uint8_t first = head(path);
  if (is_fixstr(first)) return as_text(take(first & 0x1f, path));
  if (!is_text(first)) wrong_type(path, "text", first);
  const std::uint64_t size = big_endian(std::size_t{1} << (first - kStr8), path);
  return as_text(take(size, path));
}

ByteView Reader::bytes(const Path& path) {
  const std::uint8_t first = head(path);
  if (!is_between(first, kBin8, kBin32)) wrong_type(path, "bytes", first);
  const std::uint64_t size = big_endian(std::size_t{1} << (first - kBin8), path);
  return take(size, path);
}

std::size_t Reader::array(const Path& path) {
  const std::uint8_t first = head(path);
  if (is_fixarray(first)) return container(first & 0x0f, 1, path);
  if (!is_array(first)) wrong_type(path, "an array", first);
  const std::uint64_t size = big_endian(first == kArray16 ? 2 : 4, path);
  return container(size, 1, path);
}

void Reader::array_of(std::size_t size, const Path& path) {
  const std::size_t found = array(path);
  if (found != size) malformed(path, fmt::format("has {} elements, not {}", found, size));
}

std::size_t Reader::map(const Path& path) {
  const std::uint8_t first = head(path);
  if (is_fixmap(first)) return container(first & 0x0f, 2, path);
  if (!is_map(first)) wrong_type(path, "a map", first);
  const std::uint64_t size = big_endian(first == kMap16 ? 2 : 4, path);
  return container(size, 2, path);
}

void Reader::skip(const Path& path, int nesting) {
  const std::uint8_t first = head(path);
  if (is_positive_fixint(first) || is_negative_fixint(first)) return;
  if (first == kNil || first == kFalse || first == kTrue) return;
  if (is_fixstr(first)) {
    take(first & 0x1f, path);
    return;
  }
  if (is_array(first) || is_map(first)) {
    if (nesting >= kNestingMax) {
      malformed(path, fmt::format("is nested deeper than {} containers", kNestingMax));
    }
    --position_;
    const std::size_t values = is_map(first) ? 2 * map(path) : array(path);
    for (std::size_t i = 0; i < values; ++i) skip(path, nesting + 1);
    return;
  }
  if (is_text(first)) {
    const std::uint64_t size = big_endian(std::size_t{1} << (first - kStr8), path);
    take(size, path);
    return;
  }
  if (is_between(first, kBin8, kBin32)) {
    const std::uint64_t size = big_endian(std::size_t{1} << (first - kBin8), path);
    take(size, path);
    return;
  }
  if (is_between(first, kUint8, kInt64)) {
    take(std::uint64_t{1} << ((first - kUint8) & 3), path);
    return;
  }
  if (first == kFloat32 || first == kFloat64) {
    take(first == kFloat32 ? 4 : 8, path);
    return;
  }
  // An extension's type byte precedes its data.
  if (is_between(first, kFixExt1, kFixExt16)) {
    take(1 + (std::uint64_t{1} << (first - kFixExt1)), path);
    return;
  }
  if (is_between(first, kExt8, kExt32)) {
    const std::uint64_t size = big_endian(std::size_t{1} << (first - kExt8), path);
    take(1 + size, path);
    return;
  }
  static_assert(kNeverUsed == 0xc1, "the one head byte that the specification leaves unused");
  malformed(path, "begins with a byte that MessagePack never uses");
}

void Reader::end(const Path& path) const {
  if (remaining() != 0) malformed(path, fmt::format("is followed by {} more bytes", remaining()));
}

Fields::Fields(Reader& reader, const Path& path, std::span<const std::string_view> names,
               int nesting)
    : reader_(reader), path_(path), names_(names), nesting_(nesting), left_(reader.map(path)) {
  TPSYNC_ASSERT(names.size() <= 64 && nesting <= kNestingMax);
}

std::optional<std::size_t> Fields::next() {
  while (left_ > 0) {
    --left_;
    const std::string_view key = reader_.text(path_.field("<key>"));
    // Fields mostly come in the order of their names: the search begins behind the last one.
    for (std::size_t tried = 0; tried < names_.size(); ++tried, ++expected_) {
      if (expected_ >= names_.size()) expected_ = 0;
      const std::size_t i = expected_;
      if (names_[i] != key) continue;
      if (seen(i)) malformed(path_.field(names_[i]), "appears twice");
      seen_ |= std::uint64_t{1} << i;
      ++expected_;
      return i;
    }
    remember_unknown(key);
    reader_.skip(path_.field("<unknown>"), nesting_);
  }
  return std::nullopt;
}

void Fields::remember_unknown(std::string_view name) {
  for (std::size_t i = 0; i < unknown_count_; ++i) {
    const std::string_view known(unknown_[i].data, unknown_[i].size);
    if (known == name) malformed(path_, fmt::format("has {} twice", printable(name)));
  }
  if (unknown_count_ == kUnknownFieldsMax) {
    malformed(path_, fmt::format("has more than {} unknown fields", kUnknownFieldsMax));
  }
  unknown_[unknown_count_++] = {name.data(), name.size()};
}

void Fields::require(std::initializer_list<std::size_t> indices) const {
  for (const std::size_t index : indices) {
    if (!seen(index)) malformed(path_.field(names_[index]), "is missing");
  }
}

std::uint64_t PackedReader::varint() {
  // Most are small.
  if (!done() && (bytes_[position_] & std::byte{0x80}) == std::byte{0}) {
    return static_cast<std::uint64_t>(bytes_[position_++]);
  }
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (done()) malformed(path_, "ends inside a packed integer");
    const auto byte = static_cast<std::uint64_t>(bytes_[position_++]);
    const std::uint64_t bits = byte & 0x7f;
    if (shift == 63 && bits > 1) break;
    value |= bits << shift;
    if ((byte & 0x80) == 0) return value;
  }
  malformed(path_, "holds a packed integer of more than 64 bits");
}

std::uint64_t PackedReader::word() {
  if (remaining() < 8) malformed(path_, "ends inside a 64-bit word");
  const std::byte* from = bytes_.data() + position_;
  position_ += 8;
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace tpsync::wire
