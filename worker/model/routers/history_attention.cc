#include "worker/model/routers/history_attention.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/dispatch.h"

namespace switchyard::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kQueryTile = 256;
constexpr int64_t kKeyTile = 1024;

OptionalTensor Optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// What is not a tensor of the graph.
struct Layout : torch::CustomClassHolder {
  int64_t batch = 0, heads = 0, length = 0;
  std::vector<int64_t> past;  // per block
  double scale = 1.0;
  int64_t age_min = 0, age_max = 0;
  DropoutStream dropout;
  at::Tensor valid;  // [B, T] or undefined

  int64_t RowsOf(size_t block) const { return past[block] + length; }
};

// A rectangle of scores: queries [query, query + queries) against keys [key, key + keys) of one
// block; key numbers count from the block's first row, `offset` is that row in the joined keys.
struct Tile {
  size_t block = 0;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  int64_t offset = 0;
};

// The tiles of one row of queries that hold at least one allowed age.
std::vector<Tile> TilesOf(const Layout& layout, int64_t query, int64_t queries) {
  std::vector<Tile> tiles;
  int64_t offset = 0;
  for (size_t block = 0; block < layout.past.size(); ++block) {
    const int64_t rows = layout.RowsOf(block), past = layout.past[block];
    const int64_t first_time = std::max(query - layout.age_max, -past);
    const int64_t last_time = std::min(query + queries - 1 - layout.age_min, layout.length - 1);
    for (int64_t key = first_time + past; key <= last_time + past; key += kKeyTile) {
      tiles.push_back({.block = block,
                       .query = query,
                       .queries = queries,
                       .key = key,
                       .keys = std::min(kKeyTile, last_time + past + 1 - key),
                       .offset = offset});
    }
    offset += rows;
  }
  return tiles;
}

// [queries, keys] int64: time of the query minus time of the key.
at::Tensor Ages(const Layout& layout, const Tile& tile, const at::Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor query = at::arange(tile.query, tile.query + tile.queries, options);
  const at::Tensor key = at::arange(tile.key, tile.key + tile.keys, options);
  return query.unsqueeze(1) - (key - layout.past[tile.block]).unsqueeze(0);
}

// [B, 1, 1, keys] bool; rows of the past are valid.
at::Tensor ValidKeys(const Layout& layout, const Tile& tile) {
  const int64_t past = layout.past[tile.block];
  const int64_t from_past = std::clamp<int64_t>(past - tile.key, 0, tile.keys);
  const at::Tensor now =
      layout.valid.narrow(1, std::max<int64_t>(tile.key - past, 0), tile.keys - from_past);
  const at::Tensor before = at::ones({layout.batch, from_past}, layout.valid.options());
  return at::cat({before, now}, 1).view({layout.batch, 1, 1, tile.keys});
}

// Scores [B H, queries, keys] of a tile, -infinity where not allowed. q [B H, T, c] is scaled.
at::Tensor Scores(const Layout& layout, const Tile& tile, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& bias) {
  at::Tensor scores = at::bmm(q.narrow(1, tile.query, tile.queries),
                              k.narrow(1, tile.offset + tile.key, tile.keys).transpose(1, 2));
  const at::Tensor ages = Ages(layout, tile, scores);
  at::Tensor by_head = scores.view({layout.batch, layout.heads, tile.queries, tile.keys});
  if (bias.defined()) by_head.add_(bias.view({-1, 1, 1}) * ages.eq(0));
  at::Tensor forbidden = ages.lt(layout.age_min).logical_or(ages.gt(layout.age_max));
  if (layout.valid.defined()) {
    forbidden = forbidden.logical_or(ValidKeys(layout, tile).logical_not());
  }
  by_head.masked_fill_(forbidden, -kInfinity);
  return scores;
}

// [B H, queries, keys] in `like`'s type: 0 or the dropout's scale. A row of the stream is one
// (head, query) of a block over all of the block's keys.
at::Tensor Keep(const Layout& layout, const Tile& tile, const at::Tensor& like) {
  DropoutStream stream = layout.dropout;
  stream.key = stream.key.With(tile.block);
  std::vector<int64_t> sequences, rows;
  for (int64_t b = 0; b < layout.batch; ++b) {
    for (int64_t h = 0; h < layout.heads; ++h) {
      for (int64_t i = 0; i < tile.queries; ++i) {
        sequences.push_back(b);
        rows.push_back(h * layout.length + tile.query + i);
      }
    }
  }
  const at::Tensor mask =
      DropoutMaskRows(stream, sequences.data(), rows.data(), static_cast<int64_t>(rows.size()),
                      layout.RowsOf(tile.block));
  return mask.narrow(1, tile.key, tile.keys)
      .reshape({layout.batch * layout.heads, tile.queries, tile.keys})
      .to(like.options())
      .mul_(DropoutScale(stream.rate));
}

struct HistoryAttentionFunction : Function<HistoryAttentionFunction> {
  // q [B H, T, c], k and v [B H, sum of block rows, c], of one floating type.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const OptionalTensor& bias_,
                            const c10::intrusive_ptr<Layout>& layout) {
    const at::Tensor bias = bias_.value_or(at::Tensor());
    const at::Tensor scaled = q * layout->scale;
    const int64_t T = layout->length;
    at::Tensor out = at::zeros_like(q);
    at::Tensor log_sum = at::empty({q.size(0), T, 1}, q.options());
    for (int64_t query = 0; query < T; query += kQueryTile) {
      const int64_t queries = std::min(kQueryTile, T - query);
      at::Tensor peak = at::full({q.size(0), queries, 1}, -kInfinity, q.options());
      at::Tensor sum = at::zeros_like(peak);
      at::Tensor mix = out.narrow(1, query, queries);
      for (const Tile& tile : TilesOf(*layout, query, queries)) {
        const at::Tensor scores = Scores(*layout, tile, scaled, k, bias);
        const at::Tensor new_peak = at::maximum(peak, scores.amax(2, /*keepdim=*/true));
        // A row that has seen no key yet: any finite number keeps the exponentials at 0.
        const at::Tensor base = new_peak.masked_fill(new_peak.eq(-kInfinity), 0.0);
        at::Tensor p = (scores - base).exp();
        const at::Tensor fade = (peak - base).exp();
        sum = sum * fade + p.sum(2, /*keepdim=*/true);
        if (layout->dropout.active()) p = p * Keep(*layout, tile, p);
        mix.copy_(mix * fade + at::bmm(p, v.narrow(1, tile.offset + tile.key, tile.keys)));
        peak = new_peak;
      }
      const at::Tensor empty = sum.eq(0);
      mix.div_(sum.masked_fill(empty, 1.0));
      log_sum.narrow(1, query, queries).copy_((peak + sum.log()).masked_fill(empty, kInfinity));
    }
    ctx->save_for_backward({scaled, k, v, bias, out, log_sum});
    ctx->saved_data["layout"] = c10::IValue::make_capsule(layout);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto layout =
        c10::static_intrusive_pointer_cast<Layout>(ctx->saved_data["layout"].toCapsule());
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3], &out = saved[4],
                     &log_sum = saved[5];
    const at::Tensor g = grads[0].contiguous();
    const at::Tensor dot = (g * out).sum(2, /*keepdim=*/true);  // [B H, T, 1]
    at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    at::Tensor dbias = bias.defined() ? at::zeros_like(bias) : at::Tensor();
    const int64_t T = layout->length;
    for (int64_t query = 0; query < T; query += kQueryTile) {
      const int64_t queries = std::min(kQueryTile, T - query);
      const at::Tensor g_rows = g.narrow(1, query, queries);
      for (const Tile& tile : TilesOf(*layout, query, queries)) {
        const int64_t first = tile.offset + tile.key;
        const at::Tensor p =
            (Scores(*layout, tile, q, k, bias) - log_sum.narrow(1, query, queries)).exp();
        at::Tensor dp = at::bmm(g_rows, v.narrow(1, first, tile.keys).transpose(1, 2));
        at::Tensor dropped = p;
        if (layout->dropout.active()) {
          const at::Tensor keep = Keep(*layout, tile, p);
          dropped = p * keep;
          dp = dp * keep;
        }
        dv.narrow(1, first, tile.keys).add_(at::bmm(dropped.transpose(1, 2), g_rows));
        const at::Tensor ds = p * (dp - dot.narrow(1, query, queries));
        dq.narrow(1, query, queries).add_(at::bmm(ds, k.narrow(1, first, tile.keys)));
        dk.narrow(1, first, tile.keys)
            .add_(at::bmm(ds.transpose(1, 2), q.narrow(1, query, queries)));
        if (dbias.defined()) {
          const at::Tensor own = Ages(*layout, tile, ds).eq(0);
          dbias.add_((ds.view({layout->batch, layout->heads, tile.queries, tile.keys}) * own)
                         .sum(at::IntArrayRef{0, 2, 3}));
        }
      }
    }
    return {dq.mul_(layout->scale), dk, dv, dbias, Variable()};
  }
};

at::Tensor Joined(const std::vector<at::Tensor>& blocks, at::ScalarType type) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& block : blocks) rows.push_back(block.flatten(0, 1).to(type));
  return rows.size() == 1 ? rows[0].contiguous() : at::cat(rows, 1);
}

}  // namespace

at::Tensor HistoryAttention(const HistoryAttentionInput& in) {
  TORCH_CHECK(in.q.dim() == 4 && !in.k.empty() && in.k.size() == in.v.size(), "attention of ",
              in.q.sizes(), " over ", in.k.size(), " key and ", in.v.size(), " value blocks");
  auto layout = c10::make_intrusive<Layout>();
  layout->batch = in.q.size(0);
  layout->heads = in.q.size(1);
  layout->length = in.q.size(2);
  layout->scale = in.scale;
  layout->age_min = in.age_min;
  layout->age_max = in.age_max;
  layout->dropout = in.dropout;
  layout->valid = in.valid;
  for (size_t j = 0; j < in.k.size(); ++j) {
    const at::Tensor& k = in.k[j];
    TORCH_CHECK(
        k.dim() == 4 && k.sizes() == in.v[j].sizes() && k.size(0) == in.q.size(0) &&
            k.size(1) == in.q.size(1) && k.size(2) >= in.q.size(2) && k.size(3) == in.q.size(3),
        "attention of ", in.q.sizes(), " over keys ", k.sizes(), " and values ", in.v[j].sizes());
    layout->past.push_back(k.size(2) - in.q.size(2));
  }
  const auto type = WideType(in.q.scalar_type());
  return HistoryAttentionFunction::apply(in.q.flatten(0, 1).to(type).contiguous(),
                                         Joined(in.k, type), Joined(in.v, type),
                                         Optional(in.same_time_bias), layout)
      .view(in.q.sizes())
      .to(in.q.scalar_type());
}

}  // namespace switchyard::model
