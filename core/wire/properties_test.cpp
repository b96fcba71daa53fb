// Properties of the codecs: what is encoded is decoded again, and no byte string does anything else
// than decode or be refused as PeerViolation kProtocol. TPSYNC_MUTATIONS sets the number of mutated
// messages per decoder.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "core/wire/testing/generators.h"
#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

using testing::integer;

constexpr std::uint64_t kMutationsByDefault = 20000;
constexpr int kSamplesPerDecoder = 24;

std::vector<Command> all_commands() {
  std::vector<Command> commands;
  for (int i = 1; i <= static_cast<int>(Command::kShutdown); ++i) {
    commands.push_back(static_cast<Command>(i));
  }
  return commands;
}

template <typename T>
ByteBuffer encoded(const T& value) {
  ByteBuffer out;
  encode(value, out);
  return out;
}

ByteBuffer encoded_request(std::int64_t id, const Payload& payload) {
  ByteBuffer out;
  encode_request(id, payload, out);
  return out;
}

ByteBuffer encoded_response(const Response& response) {
  ByteBuffer out;
  encode_response(response, out);
  return out;
}

ByteBuffer encoded_error(const std::optional<ErrorRecord>& error) {
  ByteBuffer out;
  encode_error(error, out);
  return out;
}

ByteBuffer encoded_sums(const std::vector<std::uint64_t>& sums) {
  ByteBuffer out;
  encode_sums(sums, out);
  return out;
}

// ---- decode(encode(x)) == x

TEST(RoundTrip, OfEveryRequest) {
  for (const Command command : all_commands()) {
    const std::string name(name_of(command));
    EXPECT_TRUE(rc::check(name, [command, &name] {
      const std::int64_t id = 1 + static_cast<std::int64_t>(testing::natural() >> 2);
      const Payload payload = testing::payload(command);
      RC_ASSERT(command_of(payload) == command);
      const ByteBuffer bytes = encoded_request(id, payload);
      const RequestHead head = decode_request_head(bytes);
      RC_ASSERT(head.request_id == id);
      RC_ASSERT(head.command == name);
      RC_ASSERT((decode_payload(command, bytes) == payload));
    }));
  }
}

TEST(RoundTrip, OfEveryResponse) {
  for (const Command command : all_commands()) {
    EXPECT_TRUE(rc::check(std::string(name_of(command)), [command] {
      const Peer peer = testing::boolean() ? Peer::kWorker : Peer::kRuntime;
      const Response response = testing::response(command, testing::boolean(), peer);
      const ByteBuffer bytes = encoded_response(response);
      RC_ASSERT((decode_response(bytes, response.request_id, name_of(command), peer) == response));
    }));
  }
}

TEST(RoundTrip, OfWhatActorsSayToOneAnother) {
  EXPECT_TRUE(rc::check("schema report", [] {
    const SchemaReport report = testing::schema_report();
    RC_ASSERT((decode_schema_report(encoded(report)) == report));
  }));
  EXPECT_TRUE(rc::check("topology report", [] {
    const TopologyReport report = testing::topology_report();
    RC_ASSERT((decode_topology_report(encoded(report)) == report));
  }));
  EXPECT_TRUE(rc::check("preflight report", [] {
    const PreflightReport report = testing::preflight_report();
    RC_ASSERT((decode_preflight_report(encoded(report)) == report));
  }));
  EXPECT_TRUE(rc::check("commit result", [] {
    const CommitResult result = testing::commit_result();
    RC_ASSERT((decode_commit_result(encoded(result)) == result));
  }));
  EXPECT_TRUE(rc::check("handle map", [] {
    const HandleMap handles = testing::handles();
    RC_ASSERT((decode_handle_map(encoded(handles)) == handles));
  }));
  EXPECT_TRUE(rc::check("error", [] {
    const auto error = testing::error();
    RC_ASSERT((decode_error(encoded_error(error)) == error));
  }));
  EXPECT_TRUE(rc::check("sums", [] {
    const auto sums = testing::list_of(20, testing::natural);
    RC_ASSERT(decode_sums(encoded_sums(sums)) == sums);
  }));
}

TEST(EncodedUpdate, GivesTheBytesOfTheWholeRequest) {
  EXPECT_TRUE(rc::check("encoded update", [] {
    UpdateRequest request = testing::update_request();
    const EncodedUpdate update(request);
    for (int publication = 0; publication < 2; ++publication) {
      request.handles = testing::handles();
      const std::int64_t id = integer();
      ByteBuffer out;
      update.encode(id, request.handles, out);
      RC_ASSERT(out == encoded_request(id, request));
    }
  }));
}

// ---- bytes of outside

// One decoder under test: a valid message, and decoding with encoding again.
struct Decoder {
  std::string name;
  std::function<ByteBuffer()> sample;
  std::function<ByteBuffer(ByteView)> again;

  friend void PrintTo(const Decoder& decoder, std::ostream* out) { *out << decoder.name; }
};

std::vector<Decoder> all_decoders() {
  std::vector<Decoder> decoders;
  for (const Command command : all_commands()) {
    const std::string name(name_of(command));
    decoders.push_back({"Request_" + name,
                        [command] { return encoded_request(7, testing::payload(command)); },
                        [command](ByteView bytes) {
                          const RequestHead head = decode_request_head(bytes);
                          return encoded_request(head.request_id, decode_payload(command, bytes));
                        }});
    for (const Peer peer : {Peer::kRuntime, Peer::kWorker}) {
      decoders.push_back(
          {(peer == Peer::kWorker ? "WorkerResponse_" : "Response_") + name,
           [command, peer] {
             Response response = testing::response(command, testing::boolean(), peer);
             response.request_id = 7;
             return encoded_response(response);
           },
           [command, peer](ByteView bytes) {
             return encoded_response(decode_response(bytes, 7, name_of(command), peer));
           }});
    }
  }
  decoders.push_back({"SchemaReport", [] { return encoded(testing::schema_report()); },
                      [](ByteView bytes) { return encoded(decode_schema_report(bytes)); }});
  decoders.push_back({"TopologyReport", [] { return encoded(testing::topology_report()); },
                      [](ByteView bytes) { return encoded(decode_topology_report(bytes)); }});
  decoders.push_back({"PreflightReport", [] { return encoded(testing::preflight_report()); },
                      [](ByteView bytes) { return encoded(decode_preflight_report(bytes)); }});
  decoders.push_back({"CommitResult", [] { return encoded(testing::commit_result()); },
                      [](ByteView bytes) { return encoded(decode_commit_result(bytes)); }});
  decoders.push_back({"HandleMap", [] { return encoded(testing::handles()); },
                      [](ByteView bytes) { return encoded(decode_handle_map(bytes)); }});
  decoders.push_back({"Error", [] { return encoded_error(testing::error()); },
                      [](ByteView bytes) { return encoded_error(decode_error(bytes)); }});
  decoders.push_back({"Sums", [] { return encoded_sums(testing::list_of(20, testing::natural)); },
                      [](ByteView bytes) { return encoded_sums(decode_sums(bytes)); }});
  return decoders;
}

// True if the bytes were decoded. What decodes must encode to bytes that decode to themselves; any
// exception but the one allowed leaves the function and fails the test.
bool decodes(const Decoder& decoder, ByteView bytes) {
  ByteBuffer first;
  try {
    first = decoder.again(bytes);
  } catch (const PeerViolation& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kProtocol) << decoder.name << ": " << error.what();
    EXPECT_FALSE(error.record().subject.empty());
    return false;
  }
  EXPECT_EQ(decoder.again(first), first) << decoder.name;
  return true;
}

std::vector<ByteBuffer> samples_of(const Decoder& decoder) {
  std::vector<ByteBuffer> samples;
  // Sizes and choices vary with the generator's seed alone.
  const auto generator = rc::gen::exec([&decoder] { return decoder.sample(); });
  for (int i = 0; i < kSamplesPerDecoder; ++i) {
    samples.push_back(generator(rc::Random(static_cast<std::uint64_t>(i) + 1), 100).value());
  }
  return samples;
}

class HostileBytes : public ::testing::TestWithParam<Decoder> {};

TEST_P(HostileBytes, AMessageCutAnywhereIsRefused) {
  const Decoder& decoder = GetParam();
  for (const ByteBuffer& sample : samples_of(decoder)) {
    ASSERT_TRUE(decodes(decoder, sample));
    for (std::size_t size = 0; size < sample.size(); ++size) {
      ASSERT_FALSE(decodes(decoder, ByteView(sample).first(size)))
          << "cut to " << size << " of " << sample.size();
    }
  }
}

TEST_P(HostileBytes, AMessageFollowedByAnythingIsRefused) {
  for (ByteBuffer sample : samples_of(GetParam())) {
    sample.push_back(std::byte{0xc0});
    ASSERT_FALSE(decodes(GetParam(), sample));
  }
}

std::uint64_t mutation_count() {
  const char* const text = std::getenv("TPSYNC_MUTATIONS");
  return text == nullptr ? kMutationsByDefault : std::strtoull(text, nullptr, 10);
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  void mutate(ByteBuffer& bytes, const std::vector<ByteBuffer>& others) {
    const std::uint64_t rounds = 1 + below(4);
    for (std::uint64_t i = 0; i < rounds && !bytes.empty(); ++i) mutate_once(bytes, others);
  }

 private:
  void mutate_once(ByteBuffer& bytes, const std::vector<ByteBuffer>& others) {
    const std::uint64_t choice = below(7);
    const auto at = static_cast<std::ptrdiff_t>(below(bytes.size()));
    const auto rest = static_cast<std::uint64_t>(std::ssize(bytes) - at);
    switch (choice) {
      case 0:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1U << below(8));
        break;
      case 1:  // a head byte of the format: sizes, types, the unused one
        bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(0x80 + below(0x80));
        break;
      case 2:
        bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(below(256));
        break;
      case 3: {
        const auto count = static_cast<std::ptrdiff_t>(1 + below(std::min<std::uint64_t>(rest, 8)));
        bytes.erase(bytes.begin() + at, bytes.begin() + at + count);
        break;
      }
      case 4:
        bytes.insert(bytes.begin() + at, 1 + below(8), static_cast<std::byte>(below(256)));
        break;
      case 5:
        bytes.resize(static_cast<std::size_t>(at));
        break;
      default: {  // a piece of another valid message
        const ByteBuffer& other = others[below(others.size())];
        if (other.empty()) break;
        const std::uint64_t from = below(other.size());
        const std::uint64_t count = 1 + below(std::min<std::uint64_t>(other.size() - from, 64));
        const ByteView piece = ByteView(other).subspan(from, count);
        bytes.insert(bytes.begin() + at, piece.begin(), piece.end());
      }
    }
  }

  std::mt19937_64 random_;  // its sequence is fixed by the standard
};

TEST_P(HostileBytes, MutatedMessagesDecodeOrAreRefused) {
  const Decoder& decoder = GetParam();
  const std::uint64_t count = mutation_count();
  ASSERT_GT(count, 0u);
  const std::vector<ByteBuffer> samples = samples_of(decoder);
  Mutator mutator(count);
  std::uint64_t refused = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    ByteBuffer bytes = samples[i % samples.size()];
    mutator.mutate(bytes, samples);
    if (!decodes(decoder, bytes)) ++refused;
    ASSERT_FALSE(HasFailure()) << "mutation " << i << " of " << count;
  }
  // Most mutations break a message; one that never does would test nothing.
  EXPECT_GT(refused, count / 10);
}

INSTANTIATE_TEST_SUITE_P(Decoders, HostileBytes, ::testing::ValuesIn(all_decoders()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace tpsync::wire
