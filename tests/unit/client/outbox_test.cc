#include "client/outbox.h"

#include <sys/stat.h>
#include <utime.h>

#include <ctime>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/exit_code.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

using ::testing::HasSubstr;

// Kind 13: what is sent again after a lost answer is the same request; once it is answered, the
// same content is a new one.
TEST(Outbox, KeepsTheIdUntilTheAnswer) {
  const TemporaryFolder folder;
  const Outbox outbox(folder.path() + "/state/outbox");
  const Outbox::Ticket first = outbox.Begin("retry x");
  EXPECT_FALSE(first.is_repeated);
  const Outbox::Ticket again = Outbox(folder.path() + "/state/outbox").Begin("retry x");
  EXPECT_TRUE(again.is_repeated);
  EXPECT_EQ(again.request_id, first.request_id);
  EXPECT_NE(outbox.Begin("retry y").request_id, first.request_id);
  outbox.Close(again);
  const Outbox::Ticket later = outbox.Begin("retry x");
  EXPECT_FALSE(later.is_repeated);
  EXPECT_NE(later.request_id, first.request_id);
}

// A repetition long after is meant as one. A clock that was set back makes no entry a fresh one.
TEST(Outbox, ForgetsAfterAnHour) {
  const TemporaryFolder folder;
  const Outbox outbox(folder.path());
  for (const time_t shift : {-3700, 3700}) {
    const Outbox::Ticket first = outbox.Begin("retry x");
    const utimbuf times{.actime = std::time(nullptr) + shift,
                        .modtime = std::time(nullptr) + shift};
    ASSERT_EQ(utime(first.path.c_str(), &times), 0);
    const Outbox::Ticket later = outbox.Begin("retry x");
    EXPECT_FALSE(later.is_repeated);
    EXPECT_NE(later.request_id, first.request_id);
    outbox.Close(later);
  }
}

// An entry that is no id, a link, and a folder that cannot be: a new id each time, and no error.
TEST(Outbox, TrustsNothingThatIsNotAnEntry) {
  const TemporaryFolder folder;
  const Outbox outbox(folder.path());
  const std::string path = outbox.Begin("retry x").path;
  ASSERT_TRUE(WriteFileAtomically(path, "no id").ok());
  EXPECT_FALSE(outbox.Begin("retry x").is_repeated);
  const std::string file = folder.Write("file", "");
  EXPECT_EQ(Outbox(file + "/outbox").Begin("x").path, "");
  EXPECT_EQ(Outbox("").Begin("x").path, "");
  EXPECT_NE(Outbox("").Begin("x").request_id, Outbox("").Begin("x").request_id);
}

std::string IdOf(const FakeServer& server, const char* method) {
  std::smatch found;
  const std::string text = server.LastRequest(method);
  return std::regex_search(text, found, std::regex("request_id: \"([^\"]+)\"")) ? found[1].str()
                                                                                : "";
}

// A fork whose answer is lost and that is asked for again is made once; the program says so.
TEST(Outbox, AChangeIsNotMadeTwiceWhenItsAnswerIsLost) {
  const TemporaryFolder folder;
  const FakeServer server({.delay_ms = 800});
  const std::map<std::string, std::string> environment = {{"XDG_STATE_HOME", folder.path()}};
  const auto fork = [&](const char* timeout) {
    return RunOn(
        server, {"fork", "demo/2", "--at", "100", "--set", "train.steps=200", "--timeout", timeout},
        false, environment);
  };
  EXPECT_EQ(fork("0.2").code, kExitInfrastructure);
  const std::string id = IdOf(server, "ForkRun");
  ASSERT_NE(id, "");
  const Ran again = fork("10");
  EXPECT_EQ(again.code, kExitOk) << again.err;
  EXPECT_THAT(again.err, HasSubstr("it is not made twice"));
  EXPECT_EQ(IdOf(server, "ForkRun"), id);
  const Ran third = fork("10");
  EXPECT_EQ(third.err, "");
  EXPECT_NE(IdOf(server, "ForkRun"), id);
}

}  // namespace
}  // namespace switchyard::client
