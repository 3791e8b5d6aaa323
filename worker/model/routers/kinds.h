#pragma once

#include <memory>

#include "worker/model/routers/router.h"

// One maker per kind; `moe` is of that kind, with defaults filled in. Names of tensors: models.md
// 7.5; those of scores begin with context.prefix, all others with context.gate_prefix.
namespace switchyard::model {

// FastMoE's naive gate: weight [E, D], bias [E].
std::unique_ptr<Router> MakeSmoeRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context);
// The same, frozen, k by a schedule (arXiv 2303.01610).
std::unique_ptr<Router> MakeSmoeDropoutRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                              const RouterContext& context);
// embedding [1, D], hypernet.0 (frozen) [H, D], hypernet.2 (frozen) [E (D + 1), H] (arXiv
// 2312.07035).
std::unique_ptr<Router> MakeHyperRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                        const RouterContext& context);
// projection [P, D], expert_embeddings [E, P], temperature [1] when learned (arXiv 2204.09179).
std::unique_ptr<Router> MakeXmoeRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context);
// Buffer table [V, K] int64 (Roller, Sukhbaatar, Szlam, Weston, "Hash Layers for Large Sparse
// Models", 2021).
std::unique_ptr<Router> MakeHashRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context);
// Kind `mcf` (models.md 4): scores from nearby tokens and from earlier layers. Tensors: McfGate.
std::unique_ptr<Router> MakeMcfRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                      const RouterContext& context);
// A gated recurrent unit runs through the MoE layers of a pass, token by token; scores from its
// state (arXiv 2408.06793). w1.weight [h, D], weight [E, h], gru.{weight_ih, weight_hh} [3 h, h],
// gru.{bias_ih, bias_hh} [3 h] (router_gru.* when shared).
std::unique_ptr<Router> MakeRmoeRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context);
// Cosine of the projected token to centroids, in one or more hops, each of which moves the
// projection by the chosen experts' displacements (models.md 3.9, ST-MoE). w_c.weight [s, D],
// centroids.weight and displacement.weight [E, s], and what the options add. Scores given out are
// those of the first hop, ids and weights those of all hops side by side.
std::unique_ptr<Router> MakeCosineRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context);
std::unique_ptr<Router> MakeRandomFixedRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                              const RouterContext& context);
std::unique_ptr<Router> MakeSwitchRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context);
std::unique_ptr<Router> MakeGshardRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context);
// weight [E, D] and noise_weight [E, D] (arXiv 1701.06538).
std::unique_ptr<Router> MakeNoisyTopkRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                            const RouterContext& context);
// weight [E, D]; buffer threshold [E] with threshold_inference (arXiv 2202.09368).
std::unique_ptr<Router> MakeExpertChoiceRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                               const RouterContext& context);
// weight [E, D], the centroids (arXiv 2103.16716).
std::unique_ptr<Router> MakeBaseRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context);
std::unique_ptr<Router> MakeSinkhornRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                           const RouterContext& context);
// weight [E, D]; buffer e_score_correction_bias [E] (arXiv 2412.19437).
std::unique_ptr<Router> MakeBiasBalancedRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                               const RouterContext& context);
// weight [E, D] (arXiv 2401.06066; with a group limit: DeepSeek-V2).
std::unique_ptr<Router> MakeDeepseekRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                           const RouterContext& context);
// mixtral, olmoe and qwen3: weight [E, D]; they differ in gate norm and top_k alone.
std::unique_ptr<Router> MakePlainRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                        const RouterContext& context);

}  // namespace switchyard::model
