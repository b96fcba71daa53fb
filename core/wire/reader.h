// Reads MessagePack values of known types from bytes that come from outside. Every failure is
// PeerViolation kProtocol whose subject is the path of the field ("update_info.names[3]"). A size
// is compared with the bytes that remain before anything is reserved by it: every element takes at
// least one byte, so no announced size can cost more memory than the message itself earns.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tpsync/base/bytes.h"

namespace tpsync::wire {

// Containers inside one another, the message's own map included: generate's sampling_params and an
// update's shapes reach four, and nothing valid goes deeper.
inline constexpr int kNestingMax = 4;

// Unknown fields are ignored, up to this many in one map: they are kept to find duplicates.
inline constexpr std::size_t kUnknownFieldsMax = 32;

// Where a value stands. A chain on the stack, made into text for an error only.
class Path {
 public:
  Path() = default;
  // The name, and the path that this is called on, must outlive the result.
  Path field(std::string_view name) const& { return Path(this, name, kNoIndex); }
  Path at(std::size_t index) const& { return Path(this, {}, index); }
  Path field(std::string_view name) && = delete;
  Path at(std::size_t index) && = delete;
  // "message" for the root.
  std::string text() const;

 private:
  static constexpr std::size_t kNoIndex = SIZE_MAX;
  Path(const Path* parent, std::string_view name, std::size_t index)
      : parent_(parent), name_(name), index_(index) {}
  void append_to(std::string& out) const;

  const Path* parent_ = nullptr;
  std::string_view name_;
  std::size_t index_ = kNoIndex;
};

// At most 64 characters of a text from outside, what is not printable ASCII replaced.
std::string printable(std::string_view text);

[[noreturn]] void malformed(const Path& path, std::string_view detail);

class Reader {
 public:
  // `bytes` must outlive the reader and every view that it returns.
  explicit Reader(ByteView bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  bool take_nil();  // consumes nil if it is next
  bool boolean(const Path& path);
  std::int64_t integer(const Path& path);   // any integer form; not bool, not float
  std::uint64_t natural(const Path& path);  // likewise, and not negative
  double real(const Path& path);            // a float or an integer
  std::string_view text(const Path& path);
  ByteView bytes(const Path& path);
  std::size_t array(const Path& path);                // its size, at most remaining()
  void array_of(std::size_t size, const Path& path);  // exactly `size` elements
  std::size_t map(const Path& path);                  // its size, at most remaining() / 2
  void skip(const Path& path, int nesting);           // one value inside `nesting` containers
  void end(const Path& path) const;                   // nothing may be left

 private:
  // Called for nearly every byte of a message, so they stand here.
  std::uint8_t head(const Path& path) {
    if (position_ == bytes_.size()) fail_at_end(path);
    return static_cast<std::uint8_t>(bytes_[position_++]);
  }
  ByteView take(std::uint64_t size, const Path& path) {
    if (size > remaining()) fail_short(size, path);
    const ByteView view = bytes_.subspan(position_, static_cast<std::size_t>(size));
    position_ += view.size();
    return view;
  }
  [[noreturn]] void fail_at_end(const Path& path) const;
  [[noreturn]] void fail_short(std::uint64_t size, const Path& path) const;
  std::uint64_t big_endian(std::size_t size, const Path& path);
  std::size_t container(std::uint64_t size, std::uint64_t values_each, const Path& path);

  ByteView bytes_;
  std::size_t position_ = 0;
};

// One map with known field names: hands out the index of each known field in the order of the wire,
// skips the others, refuses duplicates of both.
class Fields {
 public:
  // Reads the map's head. `names` (at most 64) must outlive this. `nesting` counts the containers
  // around the map's values, the map included.
  Fields(Reader& reader, const Path& path, std::span<const std::string_view> names, int nesting);
  Fields(Reader& reader, Path&& path, std::span<const std::string_view> names,
         int nesting) = delete;

  // The next known field, whose value the caller reads before it calls again; nullopt after the
  // last one.
  std::optional<std::size_t> next();
  bool seen(std::size_t index) const { return (seen_ >> index & 1) != 0; }
  // Throws for the first of these fields that was not there.
  void require(std::initializer_list<std::size_t> indices) const;

 private:
  void remember_unknown(std::string_view name);

  Reader& reader_;
  const Path& path_;
  std::span<const std::string_view> names_;
  int nesting_;
  std::size_t left_;
  std::size_t expected_ = 0;  // the name to try first
  std::uint64_t seen_ = 0;
  std::size_t unknown_count_ = 0;
  struct Unknown {  // a view that is left unset until it is used
    const char* data;
    std::size_t size;
  };
  std::array<Unknown, kUnknownFieldsMax> unknown_;
};

// Reads packed integers (writer.h) out of a `bytes` value.
class PackedReader {
 public:
  // Both must outlive this.
  PackedReader(ByteView bytes, const Path& path) : bytes_(bytes), path_(path) {}
  PackedReader(ByteView bytes, Path&& path) = delete;
  bool done() const { return position_ == bytes_.size(); }
  std::size_t remaining() const { return bytes_.size() - position_; }
  std::uint64_t varint();  // at most 64 bits
  std::uint64_t word();

 private:
  ByteView bytes_;
  const Path& path_;
  std::size_t position_ = 0;
};

}  // namespace tpsync::wire
