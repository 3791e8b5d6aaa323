#pragma once

#include <cstdint>
#include <string>

#include "client/resume_comparison.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/corpus.h"

// The trainer's own loop, model and checkpoints, in a process of its own that can be ended at any
// point as by a lost host: a child of the test, made by fork, so that a thousand attempts cost
// seconds. The test's process itself makes no tensor before.
namespace switchyard {

enum class KillPoint {
  kNone,
  kWindow,           // between two micro-batches of an update
  kAfterEvaluation,  // when an evaluation was reported, before anything else
  kPublish,          // a checkpoint is whole on disk and has no name yet
  kAnywhere,         // by a signal, some time after its first step
};
const char* KillPointName(KillPoint point);

struct AttemptPlan {
  v1::RunSpec run;  // with defaults filled in
  const data::Corpus* corpus = nullptr;
  std::string checkpoint_dir;        // the newest checkpoint there is gone on from
  uint64_t epoch = 1;                // of this attempt
  uint64_t checkpoint_every_ms = 1;  // as often as they can be written
  KillPoint kill = KillPoint::kNone;
  uint64_t count = 1;     // the so-manieth time that the point is passed
  uint64_t after_us = 0;  // kAnywhere: microseconds behind the first point
  // Above 0: stops on its own once an evaluation of the validation split scores fewer bits a token.
  double stop_below_bits = 0;
};

struct AttemptOutcome {
  bool is_complete = false;
  bool was_killed = false;
  int exit_code = 0;
  std::string log;  // what the attempt said
};

// Runs the attempt to its end; its lines are added to `curves`, those of a killed one as far as
// they came.
AttemptOutcome RunAttempt(const AttemptPlan& plan, client::ReportedCurves* curves);

// The newest checkpoint in the folder; empty when there is none.
std::string NewestCheckpoint(const std::string& folder, const v1::RunSpec& run);

// A RunSpec in protobuf text form with its defaults filled in; fails the program when it is none.
v1::RunSpec RunFrom(const std::string& text);

// SWITCHYARD_LONG_TESTS is set.
bool IsLong();

}  // namespace switchyard
