#pragma once

#include <ostream>
#include <string>

#include "common/base/strings.h"

namespace switchyard {

// A kind of router as tests make it small. What is asked of every kind is asked of this list, which
// a test holds against spec.proto, so that a new kind is in all of it.
struct RouterCase {
  std::string kind;          // as in a sweep file
  std::string options = "";  // fields of its message in protobuf text form
  int top_k = 2;
  // The balance loss that its family is trained with; empty: only z_loss acts on it.
  std::string balance = "megatron_aux";
  // Scores that losses, noise and gate norms act on.
  bool has_scores = true;
  // Evaluates on the batch's best assignment or on its own picks: takes no capacity.
  bool balances_batch = false;
};

inline const RouterCase kRouterCases[] = {
    {.kind = "dense", .balance = "", .has_scores = false},
    {.kind = "smoe"},
    {.kind = "smoe_dropout", .options = "logit_dropout: 0.1"},
    {.kind = "hyper_router", .options = "hyper_size: 16"},
    {.kind = "rmoe", .options = "state_size: 16", .balance = "hf_mixtral"},
    {.kind = "mcf", .options = "r: 4 k_loc: 2 heads: 2 d_kv: 8"},
    {.kind = "cosine", .options = "d_score: 8 hops: 2", .balance = "sra"},
    {.kind = "xmoe", .options = "proj_dim: 8", .balance = "gshard_top1"},
    {.kind = "hash", .options = "balanced: true", .top_k = 1, .balance = "", .has_scores = false},
    {.kind = "random_fixed"},
    {.kind = "switch", .top_k = 1, .balance = "switch"},
    {.kind = "gshard", .balance = "gshard_top1"},
    {.kind = "noisy_topk", .balance = "cv2"},
    {.kind = "expert_choice",
     .options = "threshold_inference: true",
     .balance = "",
     .balances_batch = true},
    {.kind = "base", .top_k = 1, .balance = "", .balances_batch = true},
    {.kind = "sinkhorn", .top_k = 1, .balance = "", .balances_batch = true},
    {.kind = "bias_balanced", .balance = "deepseek_seq"},
    {.kind = "deepseek", .balance = "deepseek_seq"},
    {.kind = "mixtral", .balance = "hf_mixtral"},
    {.kind = "olmoe", .balance = "hf_mixtral"},
    {.kind = "qwen3", .balance = "hf_mixtral"},
};

inline void PrintTo(const RouterCase& router, std::ostream* os) { *os << router.kind; }
inline bool IsDense(const RouterCase& router) { return router.kind == "dense"; }

// What stands around a kind in its MoeSpec.
struct MoeText {
  std::string layers = "[0, 1]";
  int experts = 4;
  std::string router = "";  // fields beside the kind
  std::string more = "";    // fields of the MoeSpec
};

// `moe { ... }` in protobuf text form.
inline std::string Moe(const RouterCase& router, const MoeText& around = {}) {
  return StrCat("moe { layers: ", around.layers, " experts: ", around.experts,
                IsDense(router) ? "" : StrCat(" top_k: ", router.top_k), " router { ", router.kind,
                " { ", router.options, " } ", around.router, " } ", around.more, " } ");
}

// The losses that act on the kind, with coefficients at which they show.
inline std::string Losses(const RouterCase& router) {
  if (!router.has_scores) return "";
  return StrCat(
      router.balance.empty() ? "" : StrCat("losses { id: '", router.balance, "' coef: 1 } "),
      "losses { id: 'z_loss' coef: 0.1 } ");
}

}  // namespace switchyard
