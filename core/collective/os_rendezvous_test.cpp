// How ranks find one another: through files that may be old, through a port, in time or not.
#include "tpsync/collective/os_rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "tpsync/collective/testing/gloo_ranks.h"

namespace tpsync::collective {
namespace {

class GlooRendezvous : public fakes::GlooRanks {
 protected:
  RendezvousOptions meeting(int rank, int size) const { return options(rank, size).meeting; }

  // A port that is free at this moment.
  RendezvousOptions at_port(int rank, int size, std::uint16_t port) const {
    RendezvousOptions options = meeting(rank, size);
    options.store = RendezvousStore::kTcp;
    options.host = "127.0.0.1";
    options.port = port;
    return options;
  }

  void expect_all_meet(int size, const std::function<RendezvousOptions(int)>& options_of) {
    std::vector<std::unique_ptr<Thread>> running;
    std::vector<std::unique_ptr<Rendezvous>> met(static_cast<std::size_t>(size));
    for (std::size_t rank = 0; rank < met.size(); ++rank) {
      running.push_back(threads_.spawn("rank", [&, rank] {
        met[rank] = std::make_unique<Rendezvous>(options_of(static_cast<int>(rank)), clock_,
                                                 world_.world().random);
        const auto blobs = met[rank]->meet(fakes::patterned(rank, 10 + rank), in_an_hour());
        ASSERT_EQ(blobs.size(), met.size());
        for (std::size_t from = 0; from < blobs.size(); ++from)
          EXPECT_EQ(blobs[from], fakes::patterned(from, 10 + from));
      }));
    }
    for (const auto& thread : running) thread->join();
  }
};

TEST_F(GlooRendezvous, RanksMeetThroughFilesAndLeaveNone) {
  for (const int size : {1, 2, 8}) {
    expect_all_meet(size, [&](int rank) { return meeting(rank, size); });
    EXPECT_EQ(fakes::entries(folder_.c_str()), 0U);
  }
}

TEST_F(GlooRendezvous, RanksMeetAtAPort) {
  for (const int size : {1, 2, 8})
    expect_all_meet(size, [&](int rank) { return at_port(rank, size, 29731); });
}

TEST_F(GlooRendezvous, FilesOfAnEarlierRunChangeNothing) {
  // What a run leaves that was killed when its ranks had just met.
  {
    Rendezvous early(meeting(0, 1), clock_, world_.world().random);
    early.meet(fakes::patterned(5, 30), in_an_hour());
    std::filesystem::copy(folder_ + "/" + group_ + ".card-0", folder_ + "/kept");
  }
  for (const char* name :
       {"card-0", "card-1", "card-2", "list", "final", "confirmed-1", "confirmed-2"}) {
    std::filesystem::copy(folder_ + "/kept", folder_ + "/" + group_ + "." + name);
  }
  expect_all_meet(3, [&](int rank) { return meeting(rank, 3); });
}

TEST_F(GlooRendezvous, AHalfWrittenFileIsNoCard) {
  std::ofstream(folder_ + "/" + group_ + ".card-1") << "half";
  expect_all_meet(2, [&](int rank) { return meeting(rank, 2); });
}

TEST_F(GlooRendezvous, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  Rendezvous rank0(meeting(0, 3), clock_, world_.world().random);
  expect_lost(failure_of([&] { rank0.meet({}, Deadline::at(clock_.now())); }), 1);
  Rendezvous rank2(meeting(2, 3), clock_, world_.world().random);
  expect_lost(failure_of([&] { rank2.meet({}, Deadline::at(clock_.now())); }), 0);
  Rendezvous at_port_0(at_port(0, 3, 29732), clock_, world_.world().random);
  expect_lost(failure_of([&] { at_port_0.meet({}, Deadline::at(clock_.now())); }), 1);
  Rendezvous at_port_2(at_port(2, 3, 29732), clock_, world_.world().random);
  expect_lost(failure_of([&] { at_port_2.meet({}, Deadline::at(clock_.now())); }), 0);
}

TEST_F(GlooRendezvous, ARankZeroThatHasNoDescriptorForItsPeersGivesUpAtTheDeadline) {
  const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int next = dup(peer);  // the lowest number that is free
  ASSERT_EQ(close(next), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit room_to_listen = before;
  room_to_listen.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &room_to_listen), 0);
  Rendezvous rendezvous(at_port(0, 2, 29733), clock_, world_.world().random);
  std::optional<ErrorRecord> error;
  std::atomic<bool> ended{false};
  const auto rank0 = threads_.spawn("rank", [&] {
    attempt(error,
            [&] { rendezvous.meet({}, Deadline::after(clock_, std::chrono::milliseconds(500))); });
    ended.store(true);
  });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29733);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool connected = false;
  while (!connected && !ended.load()) {
    connected = connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    sched_yield();
  }
  rank0->join();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(peer);
  EXPECT_TRUE(connected);
  ASSERT_TRUE(error);
  expect_lost(*error, 1);
}

TEST_F(GlooRendezvous, OptionsThatCannotWorkAreRefused) {
  const auto expect_refused = [&](const std::string& subject, const RendezvousOptions& options) {
    const auto error = failure_of([&] { Rendezvous(options, clock_, world_.world().random); });
    EXPECT_EQ(error.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(error.subject, subject);
  };
  expect_refused("rank", meeting(2, 2));
  expect_refused("rank", meeting(-1, 2));
  RendezvousOptions options = meeting(0, 2);
  for (const char* name : {"", "a/b", "..", "with blank"}) {
    options.group = name;
    expect_refused("group", options);
  }
  options = meeting(0, 2);
  options.folder += "/absent";
  expect_refused("folder", options);
  expect_refused("host", at_port(0, 2, 0));
}

TEST_F(GlooRendezvous, EightGroupsMeetInOneFolderAtOnce) {
  std::vector<std::unique_ptr<Thread>> running;
  for (int world = 0; world < 8; ++world) {
    for (int rank = 0; rank < 2; ++rank) {
      running.push_back(threads_.spawn("rank", [&, world, rank] {
        GlooControlOptions mine = options(rank, 2);
        mine.meeting.group = "world-" + std::to_string(world);
        std::optional<ErrorRecord> error;
        attempt(error, [&] {
          GlooControlGroup group(mine, world_.world());
          std::vector<std::uint64_t> words(2);
          group.all_gather_word(static_cast<std::uint64_t>(world * 10 + rank), words, in_an_hour());
          EXPECT_EQ(words[0], static_cast<std::uint64_t>(world * 10));
          EXPECT_EQ(words[1], static_cast<std::uint64_t>(world * 10 + 1));
        });
        EXPECT_FALSE(error) << to_text(*error);
      }));
    }
  }
  for (const auto& thread : running) thread->join();
  EXPECT_EQ(fakes::entries(folder_.c_str()), 0U);
}

TEST_F(GlooRendezvous, AGroupWhoseRankNeverComesLeavesNothing) {
  const std::size_t descriptors = fakes::entries("/proc/self/fd");
  const std::size_t tasks = fakes::entries("/proc/self/task");
  GlooControlOptions alone = options(0, 2);
  alone.timeout = std::chrono::milliseconds(20);
  expect_lost(failure_of([&] { GlooControlGroup(alone, world_.world()); }), 1);
  EXPECT_EQ(fakes::entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(fakes::entries("/proc/self/task"), tasks);
  EXPECT_EQ(fakes::entries(folder_.c_str()), 0U);
}

TEST_F(GlooRendezvous, AnAddressThatIsNotThisHostsIsRefusedAndThePeersAreTold) {
  const GlooAddress foreign[] = {{.host = "192.0.2.1"}, {.interface = "none0"}};
  for (const GlooAddress& address : foreign) {
    fakes::Outcomes outcomes(2);
    std::vector<std::unique_ptr<Thread>> running;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      running.push_back(threads_.spawn("rank", [&, rank] {
        GlooControlOptions mine = options(static_cast<int>(rank), 2);
        if (rank == 1) mine.address = address;
        attempt(outcomes[rank], [&] { GlooControlGroup(mine, world_.world()); });
      }));
    }
    for (const auto& thread : running) thread->join();
    ASSERT_TRUE(outcomes[0] && outcomes[1]);
    EXPECT_EQ(outcomes[0]->kind, ErrorKind::kPeerFailed);
    EXPECT_EQ(outcomes[0]->rank, 1);
    EXPECT_EQ(outcomes[1]->kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(outcomes[1]->subject, address.interface.empty() ? address.host : address.interface);
  }
}

TEST_F(GlooRendezvous, AGroupListensAtTheInterfaceThatItIsGiven) {
  std::vector<std::unique_ptr<Thread>> running;
  for (int rank = 0; rank < 2; ++rank) {
    running.push_back(threads_.spawn("rank", [&, rank] {
      GlooControlOptions mine = options(rank, 2);
      mine.address = {.interface = "lo", .host = ""};
      std::optional<ErrorRecord> error;
      attempt(error, [&] {
        GlooControlGroup group(mine, world_.world());
        EXPECT_EQ(group.all_gather({}, in_an_hour()).size(), 2U);
      });
      EXPECT_FALSE(error) << to_text(*error);
    }));
  }
  for (const auto& thread : running) thread->join();
}

}  // namespace
}  // namespace tpsync::collective
