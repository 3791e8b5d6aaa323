#include "worker/model/backbones/adaptive_softmax.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>

namespace switchyard::model {

AdaptiveSoftmax::AdaptiveSoftmax(const AdaptiveSoftmaxOptions& options, ParameterStore& store)
    : options_(options), ends_(options.cutoffs) {
  int64_t last = 0;
  for (const int64_t cutoff : options.cutoffs) {
    TORCH_CHECK(cutoff > last && cutoff < options.vocab_size, "adaptive softmax: cutoff ", cutoff,
                " is not between ", last, " and the vocabulary of ", options.vocab_size);
    last = cutoff;
  }
  TORCH_CHECK(!ends_.empty() && options.div_val > 0, "adaptive softmax: ", ends_.size(),
              " cutoffs, div_val ", options.div_val);
  ends_.push_back(options.vocab_size);
  const Init init{.std = options.init_std}, projection_init{.std = options.projection_std};
  const int64_t d = options.d_model;
  if (options.div_val == 1) {
    embeddings_.push_back(store.Add("word_emb.emb_layers.0.weight", {options.vocab_size, d}, init));
    biases_.push_back(store.Add("crit.out_layers.0.bias", {options.vocab_size}, {}));
  } else {
    int64_t width = d;
    for (int64_t i = 0; i <= clusters(); ++i) {
      TORCH_CHECK(width > 0, "adaptive softmax: d_model ", d, " over div_val ", options.div_val,
                  " leaves cluster ", i, " no width");
      const std::string number = std::to_string(i);
      const int64_t size = End(i) - Begin(i);
      embeddings_.push_back(
          store.Add("word_emb.emb_layers." + number + ".weight", {size, width}, init));
      projections_.push_back(
          store.Add("word_emb.emb_projs." + number, {d, width}, projection_init));
      biases_.push_back(store.Add("crit.out_layers." + number + ".bias", {size}, {}));
      width /= options.div_val;
    }
    head_projection_ = store.Add("crit.out_projs.0", {d, d}, projection_init);
  }
  cluster_weight_ = store.Add("crit.cluster_weight", {clusters(), d}, init);
  cluster_bias_ = store.Add("crit.cluster_bias", {clusters()}, {});
}

int64_t AdaptiveSoftmax::Begin(int64_t cluster) const {
  return cluster == 0 ? 0 : ends_[static_cast<size_t>(cluster) - 1];
}

at::Tensor AdaptiveSoftmax::Weight(int64_t cluster) const {
  if (projections_.empty()) {
    return embeddings_[0].narrow(0, Begin(cluster), End(cluster) - Begin(cluster));
  }
  return embeddings_[static_cast<size_t>(cluster)];
}

at::Tensor AdaptiveSoftmax::Bias(int64_t cluster) const {
  if (projections_.empty()) {
    return biases_[0].narrow(0, Begin(cluster), End(cluster) - Begin(cluster));
  }
  return biases_[static_cast<size_t>(cluster)];
}

at::Tensor AdaptiveSoftmax::HeadWeight() const { return at::cat({Weight(0), cluster_weight_}); }
at::Tensor AdaptiveSoftmax::HeadBias() const { return at::cat({Bias(0), cluster_bias_}); }

at::Tensor AdaptiveSoftmax::Projected(const at::Tensor& hidden, int64_t cluster,
                                      Products products) const {
  if (projections_.empty()) return hidden;
  const at::Tensor& projection =
      cluster == 0 ? head_projection_ : projections_[static_cast<size_t>(cluster)];
  return Linear(hidden, projection.t(), at::Tensor(), products).to(hidden.scalar_type());
}

at::Tensor AdaptiveSoftmax::Embed(const at::Tensor& ids) const {
  if (projections_.empty()) return at::embedding(embeddings_[0], ids);
  const at::Tensor flat = ids.reshape({-1});
  at::Tensor out =
      at::zeros({flat.size(0), options_.d_model}, embeddings_[0].options().requires_grad(false));
  for (int64_t i = 0; i <= clusters(); ++i) {
    const at::Tensor rows = flat.ge(Begin(i)).logical_and(flat.lt(End(i))).nonzero().squeeze(1);
    if (rows.size(0) == 0) continue;
    const at::Tensor found = at::embedding(Weight(i), flat.index_select(0, rows) - Begin(i));
    out = out.index_copy(0, rows, at::linear(found, projections_[static_cast<size_t>(i)]));
  }
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(options_.d_model);
  return out.view(shape);
}

at::Tensor AdaptiveSoftmax::NegativeLogLikelihood(const at::Tensor& hidden,
                                                  const at::Tensor& targets,
                                                  Products products) const {
  TORCH_CHECK(targets.numel() == 0 || targets.max().item<int64_t>() < options_.vocab_size,
              "target ", targets.max().item<int64_t>(), " is outside the vocabulary of ",
              options_.vocab_size);
  at::Tensor in_head = targets;
  for (int64_t i = 1; i <= clusters(); ++i) {
    const at::Tensor here = targets.ge(Begin(i)).logical_and(targets.lt(End(i)));
    in_head = in_head.masked_fill(here, End(0) + clusters() - i);
  }
  at::Tensor nll =
      CrossEntropy(Projected(hidden, 0, products), HeadWeight(), HeadBias(), in_head, products);
  for (int64_t i = 1; i <= clusters(); ++i) {
    const at::Tensor rows =
        targets.ge(Begin(i)).logical_and(targets.lt(End(i))).nonzero().squeeze(1);
    if (rows.size(0) == 0) continue;
    const at::Tensor chosen = hidden.index_select(0, rows);
    nll = nll.index_add(0, rows,
                        CrossEntropy(Projected(chosen, i, products), Weight(i), Bias(i),
                                     targets.index_select(0, rows) - Begin(i), products));
  }
  return nll;
}

at::Tensor AdaptiveSoftmax::LogProbabilities(const at::Tensor& hidden, Products products) const {
  const auto logs = [&](int64_t cluster, const at::Tensor& weight, const at::Tensor& bias) {
    return at::log_softmax(Linear(Projected(hidden, cluster, products), weight, bias, products)
                               .to(hidden.scalar_type()),
                           1);
  };
  const at::Tensor head = logs(0, HeadWeight(), HeadBias());
  std::vector<at::Tensor> parts = {head.narrow(1, 0, End(0))};
  for (int64_t i = 1; i <= clusters(); ++i) {
    parts.push_back(head.narrow(1, End(0) + clusters() - i, 1) + logs(i, Weight(i), Bias(i)));
  }
  return at::cat(parts, 1);
}

}  // namespace switchyard::model
