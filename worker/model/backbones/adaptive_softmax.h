#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/ops.h"
#include "worker/model/parameters.h"

namespace switchyard::model {

// Sizes of an adaptive softmax (Grave et al., "Efficient softmax approximation for GPUs", 2017, in
// Transformer-XL's form).
struct AdaptiveSoftmaxOptions {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  std::vector<int64_t> cutoffs;  // rising, each in (0, vocab_size)
  int64_t div_val = 1;           // cluster i has width d_model / div_val^i
  double init_std = 0.02;
  double projection_std = 0.01;
};

// Embedding and softmax over a vocabulary cut into a head (the ids below the first cutoff) and
// clusters; embedding and output share their matrices. Ids should fall in frequency. A cluster's
// token has probability P(its column in the head) * P(token in the cluster); cluster i (from 1) has
// head column -i. Training thread only.
class AdaptiveSoftmax {
 public:
  // Tensors: word_emb.emb_layers.<i>.weight, crit.out_layers.<i>.bias, crit.cluster_{weight,bias};
  // with div_val above 1 also word_emb.emb_projs.<i>, crit.out_projs.0 (the other projections are
  // the embedding's). Throws c10::Error on sizes that do not fit.
  AdaptiveSoftmax(const AdaptiveSoftmaxOptions& options, ParameterStore& store);

  // [..., D] of ids [...].
  at::Tensor Embed(const at::Tensor& ids) const;
  // -log P(target) of hidden [N, D], in the order of the rows; 0 where the target is negative.
  at::Tensor NegativeLogLikelihood(const at::Tensor& hidden, const at::Tensor& targets,
                                   Products products) const;
  // Log probabilities [N, V].
  at::Tensor LogProbabilities(const at::Tensor& hidden, Products products) const;

 private:
  int64_t clusters() const { return static_cast<int64_t>(ends_.size()) - 1; }
  int64_t Begin(int64_t cluster) const;
  int64_t End(int64_t cluster) const { return ends_[static_cast<size_t>(cluster)]; }
  at::Tensor Weight(int64_t cluster) const;  // [size, width]
  at::Tensor Bias(int64_t cluster) const;    // [size]
  at::Tensor HeadWeight() const;             // [first cutoff + clusters, width]
  at::Tensor HeadBias() const;
  at::Tensor Projected(const at::Tensor& hidden, int64_t cluster, Products products) const;

  const AdaptiveSoftmaxOptions options_;
  std::vector<int64_t> ends_;            // one behind the last id of the head and of each cluster
  std::vector<at::Tensor> embeddings_;   // div_val 1: one of all ids; else one per cluster
  std::vector<at::Tensor> projections_;  // [D, width] from embedding to model; or empty
  at::Tensor head_projection_;           // [D, width] of the output's head
  std::vector<at::Tensor> biases_;       // as embeddings_
  at::Tensor cluster_weight_, cluster_bias_;  // [clusters, width of the head], [clusters]
};

}  // namespace switchyard::model
