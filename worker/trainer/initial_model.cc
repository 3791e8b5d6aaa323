#include "worker/trainer/initial_model.h"

#include <google/protobuf/util/message_differencer.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/fault.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/hf/checkpoint.h"

namespace pb = ::switchyard::v1;

namespace switchyard::trainer {
namespace {

// Moves what keeps every tensor from `changes` to `model`.
void TakeHarmless(pb::ModelSpec* changes, pb::ModelSpec* model) {
  if (changes->decoder().has_dropout()) {
    model->mutable_decoder()->set_dropout(changes->decoder().dropout());
    changes->mutable_decoder()->clear_dropout();
  }
  if (!changes->has_moe() || !model->has_moe()) return;
  pb::MoeSpec &from = *changes->mutable_moe(), &to = *model->mutable_moe();
  if (from.has_top_k()) {
    to.set_top_k(from.top_k());
    from.clear_top_k();
  }
  if (!from.losses().empty()) {
    to.mutable_losses()->Swap(from.mutable_losses());
    from.clear_losses();
  }
  if (from.dispatch() != pb::DISPATCH_UNSPECIFIED) {
    to.set_dispatch(from.dispatch());
    from.clear_dispatch();
  }
  if (from.has_capacity()) {
    to.mutable_capacity()->Swap(from.mutable_capacity());
    from.clear_capacity();
  }
  if (from.has_combine_dropout()) {
    to.set_combine_dropout(from.combine_dropout());
    from.clear_combine_dropout();
  }
  if (from.has_allow_constant_gate()) {
    to.set_allow_constant_gate(from.allow_constant_gate());
    from.clear_allow_constant_gate();
  }
  if (from.ByteSizeLong() == 0) changes->clear_moe();
}

// What is left may only repeat the checkpoint's model.
Status CheckRest(const pb::ModelSpec& changes, const pb::ModelSpec& model) {
  if (changes.backbone_case() != pb::ModelSpec::BACKBONE_NOT_SET && !changes.has_decoder()) {
    return InvalidArgument("model: a Hugging Face folder holds a decoder, no other backbone");
  }
  pb::ModelSpec merged = model;
  if (!changes.moe().layers().empty()) merged.mutable_moe()->clear_layers();
  merged.MergeFrom(changes);
  google::protobuf::util::MessageDifferencer differ;
  std::string difference;
  differ.ReportDifferencesToString(&difference);
  if (differ.Compare(model, merged)) return OkStatus();
  return InvalidArgument(StrCat(
      "model: with init the model is the checkpoint's; only top_k, losses, dispatch, capacity, "
      "combine_dropout, allow_constant_gate and dropout can change (checkpoint's -> model's):\n",
      difference));
}

}  // namespace

Result<std::unique_ptr<model::HfCheckpoint>> ResolveInitialModel(pb::RunSpec* run) {
  std::unique_ptr<model::HfCheckpoint> checkpoint;
  if (!run->has_init()) return checkpoint;
  const pb::InitSpec init = run->init();
  if (!init.has_hf()) return checkpoint;
  if (init.restore() == pb::RESTORE_ALL) {
    return InvalidArgument(
        "init.restore: a Hugging Face folder holds weights only, not the state of a run; use "
        "weights or none");
  }
  SWITCHYARD_ASSIGN_OR_RETURN(checkpoint, model::HfCheckpoint::Open(init.hf().path()));
  pb::ModelSpec changes = run->model(), model = checkpoint->model();
  TakeHarmless(&changes, &model);
  // The data's vocabulary, filled in before: compared when the data is loaded.
  changes.clear_vocab();
  SWITCHYARD_RETURN_IF_ERROR(CheckRest(changes, model));
  if (init.restore() != pb::RESTORE_NONE) SWITCHYARD_RETURN_IF_ERROR(checkpoint->CheckSize());

  *run->mutable_model() = std::move(model);
  run->clear_init();
  // Filled in while the backbone was not known.
  if (run->train().memory_len() == 0) run->mutable_train()->clear_memory_len();
  if (run->eval().memory_len() == 0) run->mutable_eval()->clear_memory_len();
  spec::FillDefaults(run);
  // Judged as a run that trains this model: with `init` a model of its own would be refused, and a
  // finetune run without it.
  const pb::RunKind kind = run->kind();
  run->set_kind(pb::RUN_KIND_TRAIN);
  const std::vector<spec::Fault> faults = spec::ValidateRun(*run);
  run->set_kind(kind);
  *run->mutable_init() = init;
  if (!faults.empty()) {
    return InvalidArgument(
        StrCat("the model of ", init.hf().path(), ":\n", spec::ToString(faults)));
  }
  return checkpoint;
}

}  // namespace switchyard::trainer
