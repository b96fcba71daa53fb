// Records, texts and exceptions turn into one another without loss.
#include "tpsync/base/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

#include "tpsync/base/dtype.h"

namespace tpsync {
namespace {

ErrorRecord full_record() {
  ErrorRecord record;
  record.kind = ErrorKind::kMismatch;
  record.remedy = Remedy::kRebuildRuntime;
  record.phase = "native-transfer-3";
  record.rank = 2;
  record.subject = "chunk 3";
  record.detail = "too long";
  return record;
}

template <typename Exception>
ErrorRecord caught(const ErrorRecord& record) {
  try {
    throw_record(record);
  } catch (const Exception& error) {
    EXPECT_STREQ(error.what(), to_text(error.record()).c_str());
    return error.record();
  }
}

TEST(ErrorText, LeavesOutWhatIsEmpty) {
  ErrorRecord record = full_record();
  EXPECT_EQ(to_text(record), "native-transfer-3: rank 2: chunk 3: too long [mismatch]");
  record.rank = -1;
  EXPECT_EQ(to_text(record), "native-transfer-3: chunk 3: too long [mismatch]");
  record.phase.clear();
  record.subject.clear();
  EXPECT_EQ(to_text(record), "too long [mismatch]");
  record.detail.clear();
  EXPECT_EQ(to_text(record), "[mismatch]");
  record.rank = 0;
  EXPECT_EQ(to_text(record), "rank 0 [mismatch]");
}

TEST(Errors, ARecordThrowsTheClassThatItsRemedyNames) {
  ErrorRecord record = full_record();
  EXPECT_EQ(caught<RuntimeBroken>(record), record);
  record.remedy = Remedy::kFixInput;
  EXPECT_EQ(caught<InvalidInput>(record), record);
  record.remedy = Remedy::kTryLater;
  EXPECT_EQ(caught<NothingHappened>(record), record);
  record.remedy = Remedy::kFixPeer;
  EXPECT_EQ(caught<PeerViolation>(record), record);
}

TEST(Errors, TheClassDecidesTheRemedyOfItsRecord) {
  EXPECT_EQ(PeerViolation(full_record()).remedy(), Remedy::kFixPeer);
  EXPECT_EQ(InvalidInput(full_record()).record().remedy, Remedy::kFixInput);
}

template <typename Exception, typename Throw>
void expect_thrown(const Throw& shorthand, Remedy remedy) {
  try {
    shorthand(ErrorKind::kIo, "subject", "detail");
    FAIL() << "nothing was thrown";
  } catch (const Exception& error) {
    ErrorRecord expected;
    expected.kind = ErrorKind::kIo;
    expected.remedy = remedy;
    expected.subject = "subject";
    expected.detail = "detail";
    EXPECT_EQ(error.record(), expected);
  }
}

TEST(Errors, ShorthandsFillKindSubjectAndDetail) {
  expect_thrown<InvalidInput>(throw_invalid, Remedy::kFixInput);
  expect_thrown<NothingHappened>(throw_nothing_happened, Remedy::kTryLater);
  expect_thrown<RuntimeBroken>(throw_broken, Remedy::kRebuildRuntime);
  expect_thrown<PeerViolation>(throw_violation, Remedy::kFixPeer);
}

TEST(Errors, ACopyCarriesTheSameRecord) {
  const PeerViolation original(full_record());
  const PeerViolation copy = original;
  EXPECT_EQ(copy.record(), original.record());
  EXPECT_EQ(copy.what(), original.what());
}

TEST(RecordOf, KnowsItsOwnErrorsAndExhaustedMemory) {
  EXPECT_EQ(record_of(RuntimeBroken(full_record())), full_record());
  EXPECT_EQ(record_of(std::bad_alloc()).kind, ErrorKind::kOutOfMemory);
}

TEST(RecordOf, DoesNotRepeatLibraryTexts) {
  const ErrorRecord a = record_of(std::runtime_error("0x7ffd1234"));
  EXPECT_EQ(a.kind, ErrorKind::kInternal);
  EXPECT_EQ(a, record_of(std::logic_error("another text")));
}

TEST(ErrorNumbers, RoundTripAndEveryKindHasItsOwnName) {
  std::set<std::string_view> names;
  std::size_t kinds = 0;
  for (std::uint64_t number = 0; number < 64; ++number) {
    const auto kind = error_kind_from(number);
    if (!kind) continue;
    ++kinds;
    EXPECT_EQ(static_cast<std::uint64_t>(*kind), number);
    names.insert(to_string(*kind));
  }
  EXPECT_EQ(names.size(), kinds);
  EXPECT_EQ(names.count("unknown kind"), 0u);
  EXPECT_EQ(error_kind_from(0), std::nullopt);
  EXPECT_EQ(error_kind_from(UINT64_MAX), std::nullopt);
  EXPECT_EQ(remedy_from(0), std::nullopt);
  EXPECT_EQ(remedy_from(1), Remedy::kFixInput);
  EXPECT_EQ(remedy_from(4), Remedy::kFixPeer);
  EXPECT_EQ(remedy_from(5), std::nullopt);
}

TEST(Attempt, TurnsWhatIsThrownIntoTheErrorAndSkipsWhatComesAfterIt) {
  std::optional<ErrorRecord> error;
  int calls = 0;
  attempt(error, [&] { ++calls; });
  EXPECT_EQ(error, std::nullopt);
  attempt(error, [&] { throw std::runtime_error("of a library"); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::kInternal);
  EXPECT_EQ(error->remedy, Remedy::kRebuildRuntime);
  attempt(error, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(AssertionDeathTest, AFailedOneNamesItsExpressionAndAborts) {
  EXPECT_DEATH(TPSYNC_ASSERT(1 + 1 == 3), "assertion failed: 1 \\+ 1 == 3 .*errors_test.cpp");
}

TEST(DTypes, HaveTwoSpellingsAndASize) {
  const std::tuple<DType, std::uint64_t, bool, std::string_view> types[] = {
      {DType::kBFloat16, 2, true, "bfloat16"}, {DType::kFloat16, 2, true, "float16"},
      {DType::kFloat32, 4, true, "float32"},   {DType::kInt64, 8, false, "int64"},
      {DType::kUInt8, 1, false, "uint8"},
  };
  for (const auto& [dtype, bytes, floating, name] : types) {
    EXPECT_EQ(item_size(dtype), bytes);
    EXPECT_EQ(is_floating(dtype), floating);
    EXPECT_EQ(bare_name(dtype), name);
    EXPECT_EQ(torch_name(dtype), "torch." + std::string(name));
    EXPECT_EQ(dtype_from_bare(name), dtype);
    EXPECT_EQ(dtype_from_torch(torch_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_bare("torch.bfloat16"), std::nullopt);
  EXPECT_EQ(dtype_from_torch("bfloat16"), std::nullopt);
}

}  // namespace
}  // namespace tpsync
