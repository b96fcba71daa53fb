// The MessagePack forms come from msgpack-cxx's packer; the buffer is its stream.
#include "tpsync/wire/writer.h"

#include <array>
#include <bit>
#include <msgpack/pack.hpp>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

struct Sink {
  ByteBuffer& out;
  void write(const char* data, std::size_t size) {
    const auto* first = reinterpret_cast<const std::byte*>(data);
    out.insert(out.end(), first, first + size);
  }
};

msgpack::packer<Sink> packer_for(Sink& sink) { return msgpack::packer<Sink>(sink); }

std::uint32_t size32(std::size_t size) {
  if (size > UINT32_MAX) {
    throw_invalid(ErrorKind::kProtocol, "message", "has a text or list of 2^32 elements or more");
  }
  return static_cast<std::uint32_t>(size);
}

}  // namespace

void Writer::nil() {
  Sink sink{out_};
  packer_for(sink).pack_nil();
}

void Writer::boolean(bool value) {
  Sink sink{out_};
  if (value) {
    packer_for(sink).pack_true();
  } else {
    packer_for(sink).pack_false();
  }
}

void Writer::integer(std::int64_t value) {
  Sink sink{out_};
  packer_for(sink).pack_int64(value);
}

void Writer::natural(std::uint64_t value) {
  Sink sink{out_};
  packer_for(sink).pack_uint64(value);
}

// By hand: the packer writes a whole number as an integer, which would change the field's type with
// its value (and lose the sign of zero).
void Writer::real(double value) {
  constexpr std::byte kHeadOfFloat64{0xcb};
  out_.push_back(kHeadOfFloat64);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) {
    out_.push_back(static_cast<std::byte>((bits >> shift) & 0xff));
  }
}

void Writer::text(std::string_view value) {
  Sink sink{out_};
  packer_for(sink).pack_str(size32(value.size()));
  sink.write(value.data(), value.size());
}

void Writer::bytes(ByteView value) {
  Sink sink{out_};
  packer_for(sink).pack_bin(size32(value.size()));
  raw(value);
}

void Writer::array(std::size_t size) {
  Sink sink{out_};
  packer_for(sink).pack_array(size32(size));
}

void Writer::map(std::size_t size) {
  Sink sink{out_};
  packer_for(sink).pack_map(size32(size));
}

void Writer::raw(ByteView encoded) { out_.insert(out_.end(), encoded.begin(), encoded.end()); }

}  // namespace tpsync::wire
