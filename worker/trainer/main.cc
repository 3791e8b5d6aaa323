#include <malloc.h>

#include <CLI/CLI.hpp>

#include "common/base/strings.h"
#include "common/base/version.h"
#include "worker/train/exit_code.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/export.h"

namespace {

// Every step frees and takes the same large buffers. From the system they would come as new pages,
// each cleared at its first touch; the heap hands out those that are there.
void KeepFreedMemory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace

int main(int argc, char** argv) {
  KeepFreedMemory();
  switchyard::trainer::TrainerOptions options;
  CLI::App app{
      "Trains one member of an attempt: reads run.json and attempt.json, writes "
      "events.jsonl and exit.json. By hand: reads a RunSpec, writes the same lines to "
      "standard output."};
  app.set_version_flag("--version", switchyard::StrCat("switchyard-trainer ", switchyard::kVersion,
                                                       " (", switchyard::kCommit, ")"));
  auto* attempt = app.add_option("--attempt-dir", options.attempt_dir,
                                 "attempt directory, as a worker lays it out");
  auto* spec = app.add_option("--spec", options.spec_path,
                              "a RunSpec in protobuf's JSON form; defaults may be left out");
  attempt->excludes(spec);
  app.add_option("--dir", options.dir,
                 "folder for checkpoints; the newest one of the same run is resumed")
      ->needs(spec);
  app.add_option("--threads", options.threads, "threads that the trainer may use")
      ->needs(spec)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--device", options.device, "where to train")
      ->needs(spec)
      ->check(CLI::IsMember({"cpu", "gpu"}))
      ->capture_default_str();
  app.add_option("--stop-at", options.stop_at,
                 "ask for a stop after so many updates, as a worker would; the schedule stays that "
                 "of the whole run")
      ->needs(spec)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app.add_option("--checkpoint-every", options.checkpoint_every_ms,
                 "milliseconds between checkpoints")
      ->needs(spec)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  switchyard::trainer::ExportOptions to_export;
  auto* folder = app.add_option("--export", to_export.folder,
                                "instead of training, write a checkpoint of --spec into this new "
                                "folder, in the form of Hugging Face")
                     ->needs(spec);
  auto* checkpoint =
      app.add_option("--checkpoint", to_export.checkpoint_path, "folder of the checkpoint")
          ->needs(folder);
  folder->needs(checkpoint);
  app.add_flag("--fused", to_export.is_fused, "experts of a layer as one tensor")->needs(folder);
  app.add_option("--shard-bytes", to_export.shard_bytes, "largest file of weights")
      ->needs(folder)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 42))
      ->capture_default_str();
  app.footer(
      "Exit status: 0 done, 64 spec, 65 data, 69 device, 70 internal, 71 out of memory,\n"
      "75 stopped on request, 76 lease passed, 77 guard.\n\n"
      "Examples:\n  switchyard-trainer --spec run.json --threads 2 --dir checkpoints\n"
      "  switchyard-trainer --spec run.json --checkpoint checkpoints/1-200 --export folder");
  constexpr int kUsage = static_cast<int>(switchyard::train::ExitCode::kSpec);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (options.attempt_dir.empty() && options.spec_path.empty()) {
    std::cerr << "one of --attempt-dir and --spec is needed; see --help\n";
    return kUsage;
  }
  if (!to_export.folder.empty()) {
    to_export.spec_path = options.spec_path;
    const switchyard::Status status = switchyard::trainer::ExportCheckpoint(to_export);
    if (status.ok()) return 0;
    std::cerr << status.message() << "\n";
    return static_cast<int>(status.code() == switchyard::Code::kInvalidArgument
                                ? switchyard::train::ExitCode::kSpec
                                : switchyard::train::ExitCode::kData);
  }
  switchyard::trainer::RunTrainer(options);
}
