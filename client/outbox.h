#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace switchyard::client {

// Changes whose answer is not known. The coordinator does a change once for each request id; here
// the id is on disk before the first send, so that a command which is given again after a lost
// answer asks about the same request and does not make a second one. An entry goes with the answer,
// or when it is an hour old: by then a repetition is meant as one. One thread only.
class Outbox {
 public:
  // Entries are files of `folder`, made when it is needed; empty: nothing is kept.
  explicit Outbox(std::string folder) : folder_(std::move(folder)) {}

  struct Ticket {
    std::string request_id;
    // The same content was sent before, and no answer came.
    bool is_repeated = false;
    std::string path;  // of its entry; empty: none could be kept
  };
  // `content`: all that makes a request this one, without an id. Where no entry can be kept the id
  // is new each time: a change that is asked for is worth more than one that is remembered.
  Ticket Begin(std::string_view content) const;
  // Its answer is known.
  void Close(const Ticket& ticket) const;

  // $XDG_STATE_HOME/switchyard/outbox, else $HOME/.local/state/switchyard/outbox; empty without
  // either.
  static std::string DefaultFolder(const std::function<const char*(const char*)>& getenv);

 private:
  const std::string folder_;
};

}  // namespace switchyard::client
