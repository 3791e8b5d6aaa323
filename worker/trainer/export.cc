#include "worker/trainer/export.h"

#include <memory>

#include <c10/util/Exception.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/safetensors.h"
#include "worker/model/hf/checkpoint.h"
#include "worker/model/model.h"
#include "worker/train/checkpoint.h"
#include "worker/train/optimizer.h"
#include "worker/trainer/initial_model.h"
#include "worker/trainer/spec_files.h"

namespace switchyard::trainer {

Status ExportCheckpoint(const ExportOptions& options) {
  v1::RunSpec run;
  SWITCHYARD_RETURN_IF_ERROR(ReadRunFile(options.spec_path, &run));
  const std::string key = spec::RunKey(run);
  SWITCHYARD_RETURN_IF_ERROR(ResolveInitialModel(&run).status());
  SWITCHYARD_ASSIGN_OR_RETURN(const auto checkpoint,
                              train::ReadCheckpoint(options.checkpoint_path, key));
  if (run.model().vocab() == 0) {
    // Of data whose vocabulary is its own: the embedding has a row for each id.
    const data::TensorView* embedding = checkpoint->model->Find("model.embed_tokens.weight");
    if (embedding == nullptr || embedding->shape.empty()) {
      return InvalidArgument(StrCat(options.checkpoint_path,
                                    ": not of a decoder, which alone has a Hugging Face form"));
    }
    run.mutable_model()->set_vocab(static_cast<uint32_t>(embedding->shape[0]));
  }
  try {
    const auto model = model::MakeModel(run, {.vocab_size = run.model().vocab()});
    const train::NamedTensors live = train::ModelTensors(*model);
    SWITCHYARD_RETURN_IF_ERROR(train::MatchTensors(*checkpoint->model, live));
    train::CopyTensors(*checkpoint->model, live);
    return model::ExportHf(options.folder, run.model(), *model,
                           {.is_fused = options.is_fused,
                            .shard_bytes = options.shard_bytes,
                            .context = run.train().target_len()});
  } catch (const c10::Error& error) {
    return InvalidArgument(error.what_without_backtrace());
  }
}

}  // namespace switchyard::trainer
