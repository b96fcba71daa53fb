// The manifest against fingerprints that were computed elsewhere, and each of its checks.
#include "tpsync/wire/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

using testing::HasSubstr;
using testing::Not;

TensorRecord record(std::string name, std::vector<std::int64_t> shape, std::string dtype,
                    std::uint64_t numel, std::uint64_t nbytes) {
  return {std::move(name), std::move(shape), std::move(dtype), numel, nbytes};
}

TensorRecord weight() { return record("a.weight", {2, 3}, "torch.bfloat16", 6, 12); }
TensorRecord bias() { return record("b.bias", {}, "torch.float32", 1, 4); }

std::string fingerprint(std::vector<TensorRecord> records) {
  return build_manifest(records).fingerprint;
}

ErrorRecord refusal_of(const std::vector<TensorRecord>& records) {
  try {
    build_manifest(records);
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    return error.record();
  }
  ADD_FAILURE() << "the records were accepted";
  return {};
}

TEST(Manifest, OfNothingIsTheHashOfAnEmptyArray) {
  const Manifest manifest = build_manifest({});
  EXPECT_EQ(manifest.fingerprint,
            "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945");
  EXPECT_EQ(manifest.tensor_count, 0u);
}

TEST(Manifest, OfOneRecordHasItsPublishedFingerprint) {
  const Manifest manifest = build_manifest(std::vector{weight()});
  EXPECT_EQ(manifest.fingerprint,
            "cc7c21f67fea08b4ef7b6eefb5098cfbdd43223771308dfb95e53c0217640aac");
  EXPECT_EQ(manifest.tensor_count, 1u);
  EXPECT_EQ(manifest.byte_count, 12u);
}

TEST(Manifest, OfTwoRecordsHasItsPublishedFingerprint) {
  EXPECT_EQ(fingerprint({weight(), bias()}),
            "1ed785f1727bc665e75957a6f0b26e919444fefbf26b222d2e3da94d6690af8c");
}

TEST(Manifest, OfANameThatNeedsEscapesHasItsPublishedFingerprint) {
  EXPECT_EQ(fingerprint({record("\xc3\xa9\n\"/x", {0, 4}, "torch.int64", 0, 0)}),
            "6484bd3d3e09a7a8b86762fc0f72825a39f17d7a61265931d2a8818a4d97bdd1");
}

// Computed with Python: json.dumps with sort_keys and the shortest separators, then hashlib.
TEST(Manifest, OfControlCharactersAndSurrogatePairsEqualsPythonsJson) {
  EXPECT_EQ(fingerprint({record("\x01\b\f\r\t\\\x7f\xe2\x82\xac\xf0\x9f\x98\x80", {}, "d", 1, 0)}),
            "d6c85f15f5a86e9ad9b9dbf43c299a9aa89055309f608bbc89b70e315eb33525");
}

TEST(Manifest, DependsOnTheOrder) {
  EXPECT_NE(fingerprint({weight(), bias()}), fingerprint({bias(), weight()}));
}

TEST(Manifest, ABuilderIsEmptyAgainAfterItsManifest) {
  ManifestBuilder builder;
  builder.add(weight());
  EXPECT_EQ(builder.tensor_count(), 1u);
  const Manifest first = builder.finish();
  EXPECT_EQ(builder.tensor_count(), 0u);
  builder.add(weight());
  EXPECT_EQ(builder.finish(), first);
}

TEST(Manifest, ARefusedRecordLeavesTheBuilderAsItWas) {
  ManifestBuilder builder;
  builder.add(weight());
  EXPECT_THROW(builder.add(record("", {}, "d", 1, 1)), InvalidInput);
  EXPECT_THROW(builder.add(record("x", {}, "", 1, 1)), InvalidInput);
  builder.add(bias());
  EXPECT_EQ(builder.finish(), build_manifest(std::vector{weight(), bias()}));
}

TEST(Manifest, EachCheckNamesRecordAndFieldInOrder) {
  TensorRecord broken = record("", {-1}, "", 7, 0);
  const auto subject = [&broken] { return refusal_of({weight(), broken}).subject; };
  EXPECT_EQ(subject(), "tensors[1].name");
  broken.name = "\xc3";
  EXPECT_EQ(subject(), "tensors[1].name");
  broken.name = "x";
  EXPECT_EQ(subject(), "tensors[1].shape");
  broken.shape = {1, 6};
  EXPECT_EQ(subject(), "tensors[1].numel");
  broken.numel = 6;
  EXPECT_EQ(subject(), "tensors[1].dtype");
  broken.dtype = "\xff";
  EXPECT_EQ(subject(), "tensors[1].dtype");
  broken.dtype = "d";
  broken.nbytes = UINT64_MAX;
  EXPECT_EQ(subject(), "tensors[1].nbytes");
}

TEST(Manifest, AnOverflowingProductIsNoElementCount) {
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_EQ(refusal_of({record("x", {half, half}, "d", 0, 0)}).subject, "tensors[0].numel");
  // A zero anywhere makes it zero.
  EXPECT_EQ(build_manifest(std::vector{record("x", {half, half, 0}, "d", 0, 0)}).tensor_count, 1u);
}

TEST(Manifest, TextThatIsNoUtf8IsRefused) {
  for (const std::string name : {"\x80", "\xc0\x80", "\xc3\x28", "\xe2\x82", "\xed\xa0\x80",
                                 "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xff"}) {
    EXPECT_EQ(refusal_of({record(name, {}, "d", 1, 1)}).subject, "tensors[0].name");
  }
}

TEST(Manifest, TheFirstEightDuplicateNamesAreListedSorted) {
  std::vector<TensorRecord> records;
  for (int round = 0; round < 3; ++round) {
    for (char name = 'j'; name >= 'a'; --name) records.push_back(record({name}, {}, "d", 1, 1));
  }
  records.push_back(record("z", {}, "d", 1, 1));
  const ErrorRecord refusal = refusal_of(records);
  EXPECT_EQ(refusal.subject, "tensors");
  EXPECT_THAT(refusal.detail, HasSubstr(": a b c d e f g h"));
  EXPECT_THAT(refusal.detail, Not(HasSubstr("i ")));
}

TEST(Manifest, AFingerprintIs64LowerCaseHexDigits) {
  const std::string good = build_manifest({}).fingerprint;
  EXPECT_TRUE(is_fingerprint(good));
  EXPECT_FALSE(is_fingerprint(""));
  EXPECT_FALSE(is_fingerprint(good.substr(1)));
  EXPECT_FALSE(is_fingerprint(good + "0"));
  for (const char other : {'A', 'g', '_', 'x', ' ', '\0'}) {
    std::string text = good;
    text[1] = other;
    EXPECT_FALSE(is_fingerprint(text));
  }
}

}  // namespace
}  // namespace tpsync::wire
