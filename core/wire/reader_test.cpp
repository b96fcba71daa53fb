// Every MessagePack form that a reader takes or refuses, byte by byte.
#include "tpsync/wire/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tpsync/base/errors.h"
#include "tpsync/wire/writer.h"

namespace tpsync::wire {
namespace {

using testing::HasSubstr;

ByteBuffer bytes_of(std::initializer_list<int> values) {
  ByteBuffer out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

void expect_malformed(const std::string& subject, const std::string& detail,
                      const std::function<void()>& read) {
  try {
    read();
    ADD_FAILURE() << "read, expected: " << detail;
  } catch (const PeerViolation& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    EXPECT_EQ(error.record().subject, subject);
    EXPECT_THAT(error.record().detail, HasSubstr(detail));
  }
}

const Path kRoot;

std::int64_t integer_of(std::initializer_list<int> values) {
  const ByteBuffer bytes = bytes_of(values);
  Reader in(bytes);
  const std::int64_t value = in.integer(kRoot);
  in.end(kRoot);
  return value;
}

TEST(Reader, TakesEveryIntegerForm) {
  EXPECT_EQ(integer_of({0x7f}), 127);
  EXPECT_EQ(integer_of({0xe0}), -32);
  EXPECT_EQ(integer_of({0xcc, 0xff}), 255);
  EXPECT_EQ(integer_of({0xcd, 0x01, 0x02}), 258);
  EXPECT_EQ(integer_of({0xce, 0xff, 0xff, 0xff, 0xff}), 4294967295);
  EXPECT_EQ(integer_of({0xcf, 0, 0, 0, 1, 0, 0, 0, 0}), 4294967296);
  EXPECT_EQ(integer_of({0xd0, 0x80}), -128);
  EXPECT_EQ(integer_of({0xd1, 0xff, 0x00}), -256);
  EXPECT_EQ(integer_of({0xd2, 0x80, 0, 0, 0}), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(integer_of({0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}),
            std::numeric_limits<std::int64_t>::min());
}

TEST(Reader, RefusesWhatIsNoIntegerOrOutOfItsRange) {
  expect_malformed("message", "is a boolean, not an integer", [] { integer_of({0xc3}); });
  expect_malformed("message", "is a float, not an integer", [] { integer_of({0xca, 0, 0, 0, 0}); });
  expect_malformed("message", "is nil", [] { integer_of({0xc0}); });
  expect_malformed("message", "above the signed range", [] {
    integer_of({0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0});
  });
  const ByteBuffer negative = bytes_of({0xff});
  expect_malformed("message", "must not be negative", [&] { Reader(negative).natural(kRoot); });
  const ByteBuffer largest = bytes_of({0xcf, 255, 255, 255, 255, 255, 255, 255, 255});
  EXPECT_EQ(Reader(largest).natural(kRoot), UINT64_MAX);
  const ByteBuffer positive = bytes_of({0xd1, 0x01, 0x00});
  EXPECT_EQ(Reader(positive).natural(kRoot), 256u);
}

TEST(Reader, TakesFloatsAndIntegersAsNumbers) {
  const ByteBuffer half = bytes_of({0xca, 0x3f, 0, 0, 0});
  EXPECT_EQ(Reader(half).real(kRoot), 0.5);
  const ByteBuffer two = bytes_of({2});
  EXPECT_EQ(Reader(two).real(kRoot), 2.0);
  const ByteBuffer truth = bytes_of({0xc3});
  expect_malformed("message", "is a boolean, not a number", [&] { Reader(truth).real(kRoot); });
}

TEST(Reader, ABooleanIsStrict) {
  const ByteBuffer one = bytes_of({1});
  expect_malformed("message", "is an integer, not a boolean", [&] { Reader(one).boolean(kRoot); });
}

TEST(Reader, TextAndBytesAreNotTheSame) {
  const ByteBuffer text = bytes_of({0xa1, 'x'});
  const ByteBuffer bin = bytes_of({0xc4, 1, 'x'});
  EXPECT_EQ(Reader(text).text(kRoot), "x");
  EXPECT_EQ(as_text(Reader(bin).bytes(kRoot)), "x");
  expect_malformed("message", "is text, not bytes", [&] { Reader(text).bytes(kRoot); });
  expect_malformed("message", "is bytes, not text", [&] { Reader(bin).text(kRoot); });
}

TEST(Reader, SizesOfEveryWidthRoundTrip) {
  for (const std::size_t size : {0, 1, 31, 32, 255, 256, 65535, 65536, 70000}) {
    ByteBuffer bytes;
    Writer writer(bytes);
    const std::string content(size, 'q');
    writer.text(content);
    writer.bytes(as_view(content));
    writer.array(size);
    for (std::size_t i = 0; i < size; ++i) writer.nil();
    writer.map(size);
    for (std::size_t i = 0; i < 2 * size; ++i) writer.nil();
    Reader in(bytes);
    EXPECT_EQ(in.text(kRoot), content);
    EXPECT_EQ(as_text(in.bytes(kRoot)), content);
    EXPECT_EQ(in.array(kRoot), size);
    for (std::size_t i = 0; i < size; ++i) EXPECT_TRUE(in.take_nil());
    EXPECT_EQ(in.map(kRoot), size);
    for (std::size_t i = 0; i < 2 * size; ++i) EXPECT_TRUE(in.take_nil());
    in.end(kRoot);
    Reader skipping(bytes);
    for (int i = 0; i < 4; ++i) skipping.skip(kRoot, 0);
    skipping.end(kRoot);
  }
}

TEST(Reader, ASizeBeyondTheMessageIsRefusedBeforeAnythingIsReserved) {
  for (const auto& announced :
       {bytes_of({0xdd, 255, 255, 255, 255, 1}), bytes_of({0xdf, 255, 255, 255, 255, 1}),
        bytes_of({0xdb, 255, 255, 255, 255, 1}), bytes_of({0xc6, 255, 255, 255, 255, 1})}) {
    expect_malformed("message", "4294967295", [&] { Reader(announced).skip(kRoot, 0); });
  }
  const ByteBuffer map = bytes_of({0x82, 1, 1, 1});
  expect_malformed("message", "announces 2 elements, the message has 3 bytes left",
                   [&] { Reader(map).map(kRoot); });
}

TEST(Reader, NestingIsBounded) {
  const ByteBuffer four = bytes_of({0x91, 0x91, 0x91, 0x91, 1});
  Reader(four).skip(kRoot, 0);
  const ByteBuffer five = bytes_of({0x91, 0x91, 0x91, 0x91, 0x91, 1});
  expect_malformed("message", "nested deeper than 4", [&] { Reader(five).skip(kRoot, 0); });
  expect_malformed("message", "nested deeper than 4", [&] { Reader(four).skip(kRoot, 1); });
  const ByteBuffer deep(1000000, std::byte{0x91});
  expect_malformed("message", "nested deeper than 4", [&] { Reader(deep).skip(kRoot, 0); });
}

TEST(Reader, SkipsExtensionsAndRefusesTheUnusedByte) {
  for (const auto& extension :
       {bytes_of({0xd4, 1, 0}), bytes_of({0xd6, 1, 0, 0, 0, 0}), bytes_of({0xc7, 2, 1, 0, 0}),
        bytes_of({0xc8, 0, 1, 9, 0}), bytes_of({0xc9, 0, 0, 0, 0, 9})}) {
    Reader in(extension);
    in.skip(kRoot, 0);
    in.end(kRoot);
  }
  const ByteBuffer unused = bytes_of({0xc1});
  expect_malformed("message", "never uses", [&] { Reader(unused).skip(kRoot, 0); });
}

constexpr std::string_view kNames[] = {"one", "two"};

// Reads a map of integers with kNames; returns what `one` was.
std::int64_t read_map(const ByteBuffer& bytes) {
  Reader in(bytes);
  const Path path = kRoot.field("outer");
  Fields fields(in, path, kNames, 1);
  std::int64_t one = 0;
  while (const auto field = fields.next()) {
    const Path at = path.field(kNames[*field]);
    const std::int64_t value = in.integer(at);
    if (*field == 0) one = value;
  }
  fields.require({0, 1});
  in.end(path);
  return one;
}

ByteBuffer map_of(std::initializer_list<std::pair<std::string_view, int>> pairs) {
  ByteBuffer bytes;
  Writer writer(bytes);
  writer.map(pairs.size());
  for (const auto& [key, value] : pairs) {
    writer.text(key);
    writer.integer(value);
  }
  return bytes;
}

TEST(Fields, ComeInAnyOrderAndUnknownOnesAreIgnored) {
  EXPECT_EQ(read_map(map_of({{"two", 2}, {"three", 3}, {"one", 1}, {"", 0}})), 1);
}

TEST(Fields, AMissingOneIsNamed) {
  expect_malformed("outer.two", "is missing", [] { read_map(map_of({{"one", 1}})); });
}

TEST(Fields, ADuplicateIsRefusedWhetherKnownOrNot) {
  expect_malformed("outer.one", "appears twice", [] {
    read_map(map_of({{"one", 1}, {"two", 2}, {"one", 1}}));
  });
  expect_malformed("outer", "has \"x\" twice", [] { read_map(map_of({{"x", 1}, {"x", 2}})); });
}

TEST(Fields, UnknownOnesAreBounded) {
  ByteBuffer bytes;
  Writer writer(bytes);
  writer.map(kUnknownFieldsMax + 1);
  for (std::size_t i = 0; i <= kUnknownFieldsMax; ++i) {
    writer.text("unknown" + std::to_string(i));
    writer.nil();
  }
  expect_malformed("outer", "more than 32 unknown fields", [&] { read_map(bytes); });
}

TEST(Fields, AKeyMustBeText) {
  const ByteBuffer bytes = bytes_of({0x81, 1, 1});
  expect_malformed("outer.<key>", "is an integer, not text", [&] { read_map(bytes); });
}

TEST(PackedIntegers, RoundTripAtEveryWidth) {
  PackedWriter out(0);
  std::vector<std::uint64_t> values = {0, UINT64_MAX};
  for (int bit = 0; bit < 64; ++bit) {
    values.push_back(std::uint64_t{1} << bit);
    values.push_back((std::uint64_t{1} << bit) - 1);
  }
  for (const std::uint64_t value : values) {
    out.varint(value);
    out.word(value);
  }
  PackedReader in(out.bytes(), kRoot);
  for (const std::uint64_t value : values) {
    EXPECT_EQ(in.varint(), value);
    EXPECT_EQ(in.word(), value);
  }
  EXPECT_TRUE(in.done());
}

TEST(PackedIntegers, ThatEndEarlyOrAreTooLongAreRefused) {
  const ByteBuffer cut = bytes_of({0x80});
  expect_malformed("message", "ends inside a packed integer",
                   [&] { PackedReader(cut, kRoot).varint(); });
  expect_malformed("message", "ends inside a 64-bit word",
                   [&] { PackedReader(cut, kRoot).word(); });
  const ByteBuffer wide = bytes_of({255, 255, 255, 255, 255, 255, 255, 255, 255, 2});
  expect_malformed("message", "more than 64 bits", [&] { PackedReader(wide, kRoot).varint(); });
  const ByteBuffer endless(11, std::byte{0x80});
  expect_malformed("message", "more than 64 bits", [&] { PackedReader(endless, kRoot).varint(); });
}

TEST(Path, SpellsFieldsAndIndices) {
  const Path a = kRoot.field("a");
  const Path second = a.at(2);
  const Path b = second.field("b");
  EXPECT_EQ(b.text(), "a[2].b");
  EXPECT_EQ(kRoot.text(), "message");
}

TEST(Printable, ShowsNothingThatIsNotPrintable) {
  EXPECT_EQ(printable("a\"\n\xff"), "\"a???\"");
  EXPECT_EQ(printable(std::string(65, 'x')), "\"" + std::string(64, 'x') + "...\"");
}

}  // namespace
}  // namespace tpsync::wire
