#include "common/spec/validate.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/checker.h"
#include "common/spec/policy.h"
#include "common/spec/unused.h"
#include "common/spec/validate_moe.h"
#include "common/spec/wire.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr uint64_t kInt64Max = (uint64_t{1} << 63) - 1;  // what the store holds

class RunChecker : private Checker {
 public:
  explicit RunChecker(const pb::RunSpec& run) : run_(run) {}

  std::vector<Fault> Run() {
    CheckWire(run_, &faults_);
    pb::RunSpec copy = run_;
    for (const UnusedField& field : DropUnused(&copy)) {
      Fail(field.path, StrCat("is set but has no effect: ", field.reason));
    }
    if (run_.kind() == pb::RUN_KIND_UNSPECIFIED) {
      Fail("kind", "is required; known: train, finetune, evaluate, analyze, benchmark");
    }
    const bool is_trained = IsTrained(run_.kind()) || run_.kind() == pb::RUN_KIND_UNSPECIFIED;
    const bool is_from_checkpoint = run_.has_init() || run_.inputs_size() > 0;
    // What a checkpoint or its readers do not need may be left out.
    if (is_trained || run_.kind() == pb::RUN_KIND_EVALUATE || run_.has_data()) {
      CheckData(run_.data());
    }
    // With `init.hf` the trainer checks it, which sees the folder's model.
    if ((run_.has_model() || !is_from_checkpoint) && !run_.init().has_hf()) {
      CheckModel(run_.model());
    }
    if (is_trained || run_.has_train()) CheckTrain(run_.train());
    if (is_trained || run_.kind() == pb::RUN_KIND_EVALUATE || run_.has_eval()) {
      CheckEval(run_.eval());
    }
    for (Fault& fault : CheckKind(run_)) faults_.push_back(std::move(fault));
    if (run_.seed() > kInt64Max) Fail("seed", StrCat(run_.seed(), " is above ", kInt64Max));
    return std::move(faults_);
  }

 private:
  void Path(const std::string& path, const std::string& value, bool is_required) {
    if (value.empty() && is_required) Fail(path, "is required");
    if (value.find('\0') != std::string::npos) Fail(path, "holds a NUL byte");
    if (value.size() > 4096) Fail(path, StrCat("has ", value.size(), " bytes, at most 4096"));
  }

  void CheckTokens(const char* path, pb::Tokens tokens, std::initializer_list<pb::Tokens> known,
                   std::string_view names) {
    if (std::ranges::find(known, tokens) == known.end()) {
      Fail(path, StrCat("this data set has no such tokens; known: ", names));
    }
  }

  void CheckFiles(const pb::FilesData& files) {
    if (files.domains().empty()) Fail("data.files.domains", "at least one domain is required");
    std::set<std::string> ids;
    double weights = 0;
    for (const pb::Domain& domain : files.domains()) {
      const std::string path = StrCat("data.files.domains.", domain.id());
      if (!IsValidName(domain.id())) {
        Fail(path, StrCat("'", EscapeForTerminal(domain.id()), "' is not a name: ", kNameRule));
      }
      if (!ids.insert(domain.id()).second) Fail(path, "this domain is given twice");
      if (domain.globs().empty()) Fail(path, "at least one glob is required");
      for (const std::string& glob : domain.globs()) Path(StrCat(path, ".globs"), glob, true);
      NotNegative(StrCat(path, ".weight"), domain.weight());
      weights += domain.weight();
    }
    if (!files.domains().empty() && !(weights > 0)) {
      Fail("data.files.domains", "the weights of all domains are 0");
    }
    CheckTokens("data.files.tokens", files.tokens(), {pb::TOKENS_BYTES256}, "bytes256");
    const auto& shares = files.split().shares();
    if (shares.size() != 3) {
      Fail("data.files.split.shares",
           StrCat("has ", shares.size(), " numbers; train, valid and test are wanted"));
      return;
    }
    double sum = 0;
    for (const double share : shares) {
      NotNegative("data.files.split.shares", share);
      sum += share;
    }
    if (!(std::abs(sum - 1) <= 1e-9)) {
      Fail("data.files.split.shares", StrCat("sum to ", sum, " instead of 1"));
    }
    if (shares[0] == 0) Fail("data.files.split.shares", "the share of train is 0");
    for (const int split : run_.eval().splits()) {
      if (split >= pb::SPLIT_TRAIN && split <= pb::SPLIT_TEST && shares[split - 1] == 0) {
        Fail("eval.splits", StrCat("names a split whose share in data.files.split is 0"));
      }
    }
  }

  void CheckData(const pb::DataSpec& data) {
    const std::string& digest = data.digest();
    const bool is_hex = digest.size() == 71 && digest.starts_with("sha256:") &&
                        digest.find_first_not_of("0123456789abcdef", 7) == std::string::npos;
    if (!digest.empty() && !is_hex) {
      Fail("data.digest", StrCat("'", EscapeForTerminal(digest),
                                 "' is not of the form sha256:<64 lower-case hex digits>"));
    }
    switch (data.kind_case()) {
      case pb::DataSpec::kFiles:
        CheckFiles(data.files());
        break;
      case pb::DataSpec::kEnwik8:
        Path("data.enwik8.path", data.enwik8().path(), true);
        CheckTokens("data.enwik8.tokens", data.enwik8().tokens(),
                    {pb::TOKENS_BYTES256, pb::TOKENS_BYTES205, pb::TOKENS_TXL204},
                    "bytes256, bytes205, txl204");
        break;
      case pb::DataSpec::kWikitext: {
        const pb::WikitextData& wikitext = data.wikitext();
        Path("data.wikitext.path", wikitext.path(), true);
        Path("data.wikitext.train_file", wikitext.train_file(), false);
        Path("data.wikitext.valid_file", wikitext.valid_file(), false);
        Path("data.wikitext.test_file", wikitext.test_file(), false);
        CheckTokens("data.wikitext.tokens", wikitext.tokens(),
                    {pb::TOKENS_WORD, pb::TOKENS_BYTES256}, "word, bytes256");
        break;
      }
      case pb::DataSpec::KIND_NOT_SET:
        Fail("data", "is required; known: files, enwik8, wikitext");
        break;
    }
  }

  // Bounds that keep every count of parameters and FLOPs in 64 bits.
  static constexpr uint64_t kLayersMax = 1000;
  static constexpr uint64_t kWidthMax = 1 << 16;
  static constexpr uint64_t kInnerMax = 1 << 20;
  static constexpr uint64_t kHeadsMax = 1 << 10;
  static constexpr uint64_t kLengthMax = 1 << 20;

  void CheckAdaptiveSoftmax(const pb::TransformerXlSpec& spec) {
    constexpr char kPath[] = "model.transformer_xl.softmax_cutoffs";
    uint32_t last = 0;
    for (const uint32_t cutoff : spec.softmax_cutoffs()) {
      if (cutoff <= last) Fail(kPath, StrCat(cutoff, " does not rise above ", last));
      last = cutoff;
    }
    const uint64_t vocab = VocabFromData(run_);
    if (vocab > 0 && last >= vocab) {
      Fail(kPath, StrCat(last, " is not below the vocabulary of ", vocab));
    }
    if (!spec.has_div_val()) return;
    if (spec.softmax_cutoffs().empty() && spec.div_val() != 1) {
      Fail("model.transformer_xl.div_val",
           StrCat(spec.div_val(), " needs softmax_cutoffs; without clusters only 1 is possible"));
    }
    uint64_t width = spec.d_model();
    for (int i = 0; i < spec.softmax_cutoffs_size() && spec.div_val() > 0; ++i) {
      width /= spec.div_val();
    }
    if (spec.div_val() == 0 || (spec.d_model() > 0 && width == 0)) {
      Fail("model.transformer_xl.div_val",
           StrCat(spec.div_val(), " leaves the last of ", spec.softmax_cutoffs_size(),
                  " clusters no width of d_model ", spec.d_model()));
    }
  }

  void CheckTransformerXl(const pb::TransformerXlSpec& spec) {
    Range("model.transformer_xl.layers", spec.layers(), 1, kLayersMax);
    if (Range("model.transformer_xl.d_model", spec.d_model(), 1, kWidthMax) &&
        spec.d_model() % 2 != 0) {
      Fail("model.transformer_xl.d_model",
           StrCat(spec.d_model(), " is odd; relative positions take half of it each"));
    }
    Range("model.transformer_xl.heads", spec.heads(), 1, kHeadsMax);
    Range("model.transformer_xl.d_head", spec.d_head(), 1, kWidthMax);
    Range("model.transformer_xl.d_inner", spec.d_inner(), 1, kInnerMax);
    Fraction("model.transformer_xl.dropout", spec.dropout());
    Fraction("model.transformer_xl.attn_dropout", spec.attn_dropout());
    Positive("model.transformer_xl.init_std", spec.init_std());
    CheckAdaptiveSoftmax(spec);
  }

  void CheckHeads(const pb::DecoderSpec& spec, bool has_width, bool has_heads) {
    if (has_heads && Range("model.decoder.kv_heads", spec.kv_heads(), 1, kHeadsMax) &&
        spec.heads() % spec.kv_heads() != 0) {
      Fail("model.decoder.kv_heads",
           StrCat(spec.kv_heads(), " does not divide heads ", spec.heads()));
    }
    if (has_heads && has_width && !spec.has_head_dim()) {
      Fail("model.decoder.head_dim", StrCat("is required: heads ", spec.heads(),
                                            " does not divide d_model ", spec.d_model()));
    } else if (has_heads && has_width &&
               Range("model.decoder.head_dim", spec.head_dim(), 1, kWidthMax) &&
               spec.position() == pb::POSITION_KIND_ROPE && spec.head_dim() % 2 != 0) {
      Fail("model.decoder.head_dim", StrCat(spec.head_dim(), " is odd; rope turns pairs"));
    }
    NotNegative("model.decoder.qkv_clip", spec.qkv_clip());
  }

  void CheckMla(const pb::DecoderSpec& spec) {
    const pb::MlaSpec& mla = spec.mla();
    if (spec.position() != pb::POSITION_KIND_ROPE) {
      Fail("model.decoder.mla", "needs position rope: its rotary parts carry the positions");
    }
    Range("model.decoder.mla.kv_rank", mla.kv_rank(), 1, kWidthMax);
    Range("model.decoder.mla.q_rank", mla.q_rank(), 0, kWidthMax);
    Range("model.decoder.mla.nope_dim", mla.nope_dim(), 1, kWidthMax);
    Range("model.decoder.mla.value_dim", mla.value_dim(), 1, kWidthMax);
    if (Range("model.decoder.mla.rope_dim", mla.rope_dim(), 2, kWidthMax) &&
        mla.rope_dim() % 2 != 0) {
      Fail("model.decoder.mla.rope_dim", StrCat(mla.rope_dim(), " is odd; rope turns pairs"));
    }
  }

  void CheckYarn(const pb::YarnSpec& yarn) {
    if (!(yarn.factor() >= 1)) {
      Fail("model.decoder.yarn.factor", StrCat(yarn.factor(), " must be at least 1"));
    }
    Range("model.decoder.yarn.original_context", yarn.original_context(), 1, kLengthMax);
    Positive("model.decoder.yarn.beta_slow", yarn.beta_slow());
    if (!(yarn.beta_fast() > yarn.beta_slow())) {
      Fail("model.decoder.yarn.beta_fast",
           StrCat(yarn.beta_fast(), " must be above beta_slow ", yarn.beta_slow()));
    }
    NotNegative("model.decoder.yarn.mscale", yarn.mscale());
    NotNegative("model.decoder.yarn.mscale_all_dim", yarn.mscale_all_dim());
    if (yarn.has_attention_factor()) {
      Positive("model.decoder.yarn.attention_factor", yarn.attention_factor());
    }
  }

  void CheckDecoder(const pb::DecoderSpec& spec) {
    Range("model.decoder.layers", spec.layers(), 1, kLayersMax);
    const bool has_width = Range("model.decoder.d_model", spec.d_model(), 1, kWidthMax);
    const bool has_heads = Range("model.decoder.heads", spec.heads(), 1, kHeadsMax);
    Range("model.decoder.d_inner", spec.d_inner(), 1, kInnerMax);
    if (spec.has_mla()) {
      CheckMla(spec);
    } else {
      CheckHeads(spec, has_width, has_heads);
    }
    if (spec.position() == pb::POSITION_KIND_LEARNED) {
      const uint32_t longest = std::max(run_.train().target_len(), run_.eval().target_len());
      if (spec.context() < longest) {
        Fail("model.decoder.context",
             StrCat(spec.context(), " is less than the target length ", longest));
      }
      Range("model.decoder.context", spec.context(), 1, kLengthMax);
    }
    if (spec.position() == pb::POSITION_KIND_ROPE) {
      Positive("model.decoder.rope_theta", spec.rope_theta());
      if (spec.has_yarn()) CheckYarn(spec.yarn());
    }
    Positive("model.decoder.norm_eps", spec.norm_eps());
    Fraction("model.decoder.dropout", spec.dropout());
    Positive("model.decoder.init_std", spec.init_std());
  }

  void CheckModel(const pb::ModelSpec& model) {
    switch (model.backbone_case()) {
      case pb::ModelSpec::kTransformerXl:
        CheckTransformerXl(model.transformer_xl());
        break;
      case pb::ModelSpec::kDecoder:
        CheckDecoder(model.decoder());
        break;
      case pb::ModelSpec::BACKBONE_NOT_SET:
        Fail("model", "a backbone is required; known: transformer_xl, decoder");
        return;
    }
    if (model.has_moe()) {
      for (Fault& fault : CheckMoe(run_)) faults_.push_back(std::move(fault));
    }
    const uint64_t vocab = VocabFromData(run_);
    if (vocab != 0 && model.vocab() != vocab) {
      Fail("model.vocab",
           StrCat(model.vocab(), " differs from the vocabulary of the data, ", vocab));
    }
    Range("model.vocab", model.vocab(), 0, 1 << 24);
  }

  template <typename AdamMessage>
  void CheckAdam(const std::string& path, const AdamMessage& adam) {
    if (!adam.has_lr()) {
      Fail(StrCat(path, ".lr"), "is required");
    } else {
      Positive(StrCat(path, ".lr").c_str(), adam.lr());
    }
    Fraction(StrCat(path, ".beta1").c_str(), adam.beta1());
    Fraction(StrCat(path, ".beta2").c_str(), adam.beta2());
    Positive(StrCat(path, ".eps").c_str(), adam.eps());
  }

  void CheckTrain(const pb::TrainSpec& train) {
    const int lengths = (train.has_steps() ? 1 : 0) + (train.has_tokens() ? 1 : 0) +
                        (train.has_data_epochs() ? 1 : 0) + (train.has_active_flops() ? 1 : 0);
    if (lengths != 1) {
      Fail("train", StrCat("exactly one of steps, tokens, data_epochs and active_flops is "
                           "required, ",
                           lengths, " are given"));
    }
    if (train.has_steps()) Range("train.steps", train.steps(), 1, uint64_t{1} << 40);
    if (train.has_tokens()) Range("train.tokens", train.tokens(), 1, uint64_t{1} << 60);
    if (train.has_data_epochs()) Positive("train.data_epochs", train.data_epochs());
    if (Range("train.batch", train.batch(), 1, kLengthMax)) {
      Range("train.micro_batch", train.micro_batch(), 1, train.batch());
    }
    Range("train.target_len", train.target_len(), 1, kLengthMax);
    Range("train.memory_len", train.memory_len(), 0, kLengthMax);
    Range("train.warmup_steps", train.warmup_steps(), 0, uint64_t{1} << 40);
    if (train.has_clip_norm()) Positive("train.clip_norm", train.clip_norm());
    switch (train.optimizer().kind_case()) {
      case pb::OptimizerSpec::kAdam:
        CheckAdam("train.optimizer.adam", train.optimizer().adam());
        break;
      case pb::OptimizerSpec::kAdamw:
        CheckAdam("train.optimizer.adamw", train.optimizer().adamw());
        NotNegative("train.optimizer.adamw.weight_decay", train.optimizer().adamw().weight_decay());
        break;
      case pb::OptimizerSpec::KIND_NOT_SET:
        Fail("train.optimizer", "is required; known: adam, adamw");
        break;
    }
  }

  void CheckEval(const pb::EvalSpec& eval) {
    // Without the lengths of training nothing was filled in; that they are missing is said.
    if (!run_.has_train() && !run_.has_eval() && run_.kind() != pb::RUN_KIND_EVALUATE) return;
    if (!run_.has_train() && IsTrained(run_.kind())) return;
    std::set<int> splits;
    for (const int split : eval.splits()) {
      if (split == pb::SPLIT_UNSPECIFIED) Fail("eval.splits", "holds an unspecified split");
      if (!splits.insert(split).second) Fail("eval.splits", "names a split twice");
    }
    Range("eval.target_len", eval.target_len(), 1, kLengthMax);
    Range("eval.memory_len", eval.memory_len(), 0, kLengthMax);
    Range("eval.batch", eval.batch(), 1, kLengthMax);
  }

  static constexpr std::string_view kNameRule =
      "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit, without "
      "'..'";

  const pb::RunSpec& run_;
};

}  // namespace

bool IsValidName(std::string_view name) {
  const auto is_alnum = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (name.empty() || name.size() > 64) return false;
  if (!is_alnum(name.front()) || !is_alnum(name.back())) return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(
      name, [&](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; });
}

std::vector<Fault> ValidateRun(const pb::RunSpec& run) { return RunChecker(run).Run(); }

namespace {

// `NAME` or `NAME=VALUE`.
bool IsLabel(const std::string& label) {
  const size_t equals = label.find('=');
  return IsValidName(label.substr(0, equals)) &&
         (equals == std::string::npos || IsValidName(label.substr(equals + 1)));
}

void CheckPolicyWords(const pb::PolicySpec& policy, std::vector<Fault>* faults) {
  const auto check_labels = [&](const std::string& path, const auto& labels) {
    std::set<std::string> seen;
    for (const std::string& label : labels) {
      if (!IsLabel(label)) {
        faults->push_back({"", path,
                           StrCat("'", EscapeForTerminal(label),
                                  "' is not NAME or NAME=VALUE of a-z, 0-9, '.', '_' "
                                  "and '-'")});
      }
      if (!seen.insert(label).second) {
        faults->push_back({"", path, StrCat(EscapeForTerminal(label), " is given twice")});
      }
    }
  };
  check_labels("resources.labels", policy.resources().labels());
  constexpr int kAlternativesMax = 16;
  if (policy.resources().alternatives_size() > kAlternativesMax) {
    faults->push_back(
        {"", "resources.alternatives",
         StrCat("has ", policy.resources().alternatives_size(), ", at most ", kAlternativesMax)});
  }
  for (int i = 0; i < policy.resources().alternatives_size(); ++i) {
    const pb::ResourceAlternative& each = policy.resources().alternatives(i);
    const std::string path = StrCat("resources.alternatives[", i, "]");
    check_labels(path + ".labels", each.labels());
    if (each.ByteSizeLong() == 0) faults->push_back({"", path, "changes nothing"});
    if (each.cpu_slots() > 4096) {
      faults->push_back({"", path + ".cpu_slots", StrCat(each.cpu_slots(), " is above 4096")});
    }
    if (each.gpus() > 1024) {
      faults->push_back({"", path + ".gpus", StrCat(each.gpus(), " is above 1024")});
    }
    const bool takes_nothing =
        each.has_cpu_slots() && each.cpu_slots() == 0 &&
        (each.has_gpus() ? each.gpus() == 0 : policy.resources().gpus() == 0);
    if (takes_nothing) faults->push_back({"", path, "takes neither cpu_slots nor gpus"});
  }
  if (!policy.has_retry()) return;
  const pb::RetryPolicy& retry = policy.retry();
  if (retry.exit_codes().empty() && retry.log_patterns().empty()) {
    faults->push_back({"", "retry", "names neither exit_codes nor log_patterns"});
  }
  // Ends with a meaning of their own, which the coordinator retries or not by itself.
  static const std::set<uint32_t> own = {64, 65, 69, 70, 71, 75, 76, 77};
  std::set<uint32_t> codes;
  for (const uint32_t code : retry.exit_codes()) {
    if (code < 1 || code > 255) {
      faults->push_back({"", "retry.exit_codes", StrCat(code, " is not between 1 and 255")});
    } else if (own.contains(code)) {
      faults->push_back({"", "retry.exit_codes",
                         StrCat(code, " is an end of the trainer's own, not a user error")});
    }
    if (!codes.insert(code).second) {
      faults->push_back({"", "retry.exit_codes", StrCat(code, " is given twice")});
    }
  }
  for (const std::string& pattern : retry.log_patterns()) {
    if (pattern.empty() || pattern.size() > 256) {
      faults->push_back({"", "retry.log_patterns",
                         StrCat("a text has ", pattern.size(), " bytes, 1 to 256 are wanted")});
    }
  }
  if (retry.max() < 1 || retry.max() > 100) {
    faults->push_back({"", "retry.max", StrCat(retry.max(), " is not between 1 and 100")});
  }
}

}  // namespace

std::vector<Fault> ValidatePolicy(const pb::PolicySpec& policy) {
  std::vector<Fault> faults;
  CheckWire(policy, &faults);
  pb::PolicySpec filled = policy;
  FillPolicyDefaults(&filled);
  const auto range = [&](const char* path, uint64_t value, uint64_t min, uint64_t max) {
    if (value >= min && value <= max) return;
    faults.push_back({"", path, StrCat(value, " is not between ", min, " and ", max)});
  };
  range("resources.cpu_slots", filled.resources().cpu_slots(),
        filled.resources().gpus() > 0 ? 0 : 1, 4096);
  range("resources.gpus", filled.resources().gpus(), 0, 1024);
  CheckPolicyWords(filled, &faults);
  if (filled.priority() < -1'000'000 || filled.priority() > 1'000'000) {
    faults.push_back(
        {"", "priority", StrCat(filled.priority(), " is not between -1000000 and 1000000")});
  }
  range("telemetry.every_steps", filled.telemetry().every_steps(), 1, 1'000'000'000);
  constexpr uint64_t kDurationMax = 3'155'760'000'000;  // 100 years
  range("timeout", filled.timeout_ms(), 0, kDurationMax);
  range("checkpoint.every", filled.checkpoint().every_ms(), 1, kDurationMax);
  range("checkpoint.keep_last", filled.checkpoint().keep_last(), 1, 1000);
  range("checkpoint.keep_best", filled.checkpoint().keep_best(), 0, 1000);
  return faults;
}

}  // namespace switchyard::spec
