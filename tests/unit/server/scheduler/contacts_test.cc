// What is known of workers over a group of inputs that could not be written.
#include "server/scheduler/contacts.h"

#include <gtest/gtest.h>

#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

// An agent that starts anew while the coordinator cannot write: its registration is undone, but the
// worker was heard, and its attempts are not lost for a silence that there was not.
TEST(Contacts, ARegistrationThatIsNotWrittenIsAWordFromTheWorker) {
  World world = World::Running();
  const State rows = world.state();
  const WorkerContact before = ContactOf(*rows.FindWorker(World::Worker(1)));
  world.Advance(60'000);
  Register event{.worker = rows.FindWorker(World::Worker(1))->row, .nonce = "newer"};
  event.worker.incarnation = 2;
  ASSERT_TRUE(world.Do(event).status.ok());

  const std::vector<WorkerContact> kept =
      ContactsToKeep(world.state(), {{World::Worker(1), before}});
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].nonce, "nonce");
  EXPECT_EQ(kept[0].hb_seq, before.hb_seq);
  EXPECT_EQ(kept[0].last, world.now().now);

  world.state() = rows;
  const Change change = kept[0];
  Apply(std::span(&change, 1), world.now(), &world.state());
  world.Advance(599'999);
  EXPECT_TRUE(ChangesOf<AttemptStatus>(world.Do(Tick{})).empty());
  world.Advance(1);
  EXPECT_EQ(ChangesOf<AttemptStatus>(world.Do(Tick{})).size(), 1u);
}

TEST(Contacts, WhatTheInputsDidNotChangeStays) {
  World world = World::Running();
  world.Advance(5'000);
  world.Beat(World::Worker(1), {});
  const WorkerContact now = ContactOf(*world.state().FindWorker(World::Worker(1)));
  const std::vector<WorkerContact> kept = ContactsToKeep(world.state(), {});
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].last, now.last);
  EXPECT_EQ(kept[0].hb_seq, now.hb_seq);
}

}  // namespace
}  // namespace switchyard::scheduler
