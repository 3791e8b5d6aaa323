#include "server/app/inbox.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <future>

#include <gtest/gtest.h>

#include "server/app/query_pool.h"
#include "server/store/store.h"

namespace switchyard::app {
namespace {

using server_metrics::QueueClass;

// Inputs of a class, and what became of them.
struct Asked {
  int refused = 0;
  Status why;
};

class InboxTest : public testing::Test {
 protected:
  void Push(QueueClass queue, size_t bytes, Asked* asked) {
    inbox_.Push({.queue = queue,
                 .bytes = bytes,
                 .decide = [](Turn&) {},
                 .refuse =
                     [asked](const Status& status) {
                       ++asked->refused;
                       asked->why = status;
                     }});
  }

  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  server_metrics::Families families_{registry_, {}};
  Inbox inbox_{&families_};
};

// Kind 15: each class has a bound of its own; what comes beyond it is refused with a word to try
// again, counted, and nothing that waits is lost. A flood of one class keeps no other one out.
TEST_F(InboxTest, AFullQueueRefusesTheNewest) {
  Asked changes;
  for (int i = 0; i < 300; ++i) Push(QueueClass::kMutation, 0, &changes);
  EXPECT_EQ(changes.refused, 300 - 256);
  EXPECT_EQ(changes.why.code(), Code::kUnavailable);
  EXPECT_EQ(families_.queue_rejected[static_cast<size_t>(QueueClass::kMutation)]->Value(), 44);

  Asked batches;
  for (int i = 0; i < 70; ++i) Push(QueueClass::kAppend, size_t{1} << 20, &batches);
  EXPECT_EQ(batches.refused, 70 - 63);
  EXPECT_LT(inbox_.FreeAppendBytes(), size_t{1} << 20);

  Asked beats;
  for (int i = 0; i < 5000; ++i) Push(QueueClass::kHeartbeat, 0, &beats);
  EXPECT_EQ(beats.refused, 5000 - 4096);
  inbox_.SetHeartbeatBound(20'000);
  Push(QueueClass::kHeartbeat, 0, &beats);
  EXPECT_EQ(beats.refused, 5000 - 4096);

  size_t taken = 0;
  while (!inbox_.IsEmpty()) taken += inbox_.Pop(Milliseconds(0)).size();
  EXPECT_EQ(taken, 256u + 63u + 4097u);
  EXPECT_GE(inbox_.FreeAppendBytes(), size_t{64} << 20);
}

// What comes behind the close is refused; what is in it stays to be answered.
TEST_F(InboxTest, AClosedInboxRefusesEverything) {
  Asked before;
  Push(QueueClass::kMutation, 0, &before);
  inbox_.Close();
  Asked after;
  Push(QueueClass::kMutation, 0, &after);
  EXPECT_EQ(after.refused, 1);
  EXPECT_EQ(before.refused, 0);
  EXPECT_EQ(inbox_.Pop(Milliseconds(0)).size(), 1u);
}

// Kind 15, 12: queries beyond the bound are refused at once; a stop answers those that wait.
TEST(QueryPoolTest, AFullQueueRefusesTheNewest) {
  auto registry = std::make_shared<prometheus::Registry>();
  server_metrics::Families families(registry, {});
  const std::unique_ptr<store::Store> store = store::MakeMemoryStore();
  std::vector<std::unique_ptr<store::ReadStore>> readers;
  auto reader = store->OpenReader();
  ASSERT_TRUE(reader.ok());
  readers.push_back(*std::move(reader));
  QueryPool pool(std::move(readers), &families, /*queue_max=*/4);
  std::promise<void> begun;
  std::promise<void> gate;
  pool.Post([&](const Result<store::ReadStore*>&) {
    begun.set_value();
    gate.get_future().wait();
  });
  begun.get_future().wait();
  std::atomic<int> answered = 0;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 10; ++i) {
    pool.Post([&](const Result<store::ReadStore*>& given) { ++(given.ok() ? answered : refused); });
  }
  EXPECT_EQ(refused, 6);
  gate.set_value();
  pool.Stop();
  EXPECT_EQ(answered + refused, 10);
}

}  // namespace
}  // namespace switchyard::app
