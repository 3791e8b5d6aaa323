#include "worker/model/experts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/dispatch.h"
#include "worker/model/storage.h"

namespace switchyard::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;
// An undefined tensor as an argument of a Function must come as an empty optional.
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor Optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// Assignments sorted by expert. Entry p of `slots` is the flat slot n K + k that row p of the
// sorted matrices belongs to; -1 is a row of zeros that fills its expert's rows up.
struct Plan {
  std::vector<int64_t> slots;
  std::vector<int64_t> rows;     // [N K]: row of a slot, -1 = not routed
  std::vector<int64_t> offsets;  // [E + 1]
  // Every token goes to every expert: each expert's slice is x itself, in order.
  bool is_dense = false;
};

// A multiple of this is what `rows` rows of an expert are filled up to: at most a sixteenth more
// beyond 128.
int64_t RowUnit(int64_t rows) {
  return std::max<int64_t>(8,
                           static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows))) / 16);
}

// Whether the number of an expert's rows is one of any, or one of few. oneDNN, which computes
// products of bfloat16, compiles code for the exact sizes of each and keeps that of the last 1,024;
// counts that change at every step would have a quarter of a step compile.
enum class RowCounts { kAny, kFew };

Plan MakePlan(const at::Tensor& ids, int64_t experts, RowCounts counts) {
  const int64_t n = ids.size(0), k = ids.size(1);
  const auto* id = ids.const_data_ptr<int64_t>();
  std::vector<int64_t> rows_of(static_cast<size_t>(experts), 0);
  for (int64_t i = 0; i < n * k; ++i) {
    TORCH_CHECK(id[i] >= -1 && id[i] < experts, "expert ", id[i], " of ", experts);
    if (id[i] >= 0) ++rows_of[static_cast<size_t>(id[i])];
  }
  Plan plan;
  plan.is_dense =
      k == experts && std::ranges::all_of(rows_of, [&](int64_t rows) { return rows == n; });
  plan.offsets = {0};
  for (const int64_t rows : rows_of) {
    const int64_t unit = counts == RowCounts::kAny || plan.is_dense ? 1 : RowUnit(rows);
    plan.offsets.push_back(plan.offsets.back() + (rows + unit - 1) / unit * unit);
  }
  plan.rows.assign(static_cast<size_t>(n * k), -1);
  plan.slots.assign(static_cast<size_t>(plan.offsets.back()), -1);
  std::vector<int64_t> next(plan.offsets.begin(), plan.offsets.end() - 1);
  for (int64_t i = 0; i < n * k; ++i) {
    if (id[i] < 0) continue;
    const int64_t row = next[static_cast<size_t>(id[i])]++;
    plan.rows[static_cast<size_t>(i)] = row;
    plan.slots[static_cast<size_t>(row)] = i;
  }
  return plan;
}

// Rows [begin, end) of the sorted matrices, all of one expert.
struct Block {
  int64_t expert, begin, end;

  int64_t size() const { return end - begin; }
};

// About so many rows make a product that a core computes at full speed while what it reads and
// writes stays in its cache. The division depends on the assignments alone, so that the bits do not
// depend on the number of threads.
constexpr int64_t kBlockRows = 256;

// The largest first, for even ends.
std::vector<Block> BlocksOf(const Plan& plan) {
  std::vector<Block> blocks;
  for (size_t e = 0; e + 1 < plan.offsets.size(); ++e) {
    const int64_t first = plan.offsets[e], rows = plan.offsets[e + 1] - first;
    if (rows == 0) continue;
    const int64_t parts = std::max<int64_t>(1, (rows + kBlockRows / 2) / kBlockRows);
    const int64_t unit = rows % RowUnit(rows) == 0 ? RowUnit(rows) : 1;
    const auto border = [&](int64_t i) { return first + rows / unit * i / parts * unit; };
    for (int64_t i = 0; i < parts; ++i) {
      blocks.push_back({static_cast<int64_t>(e), border(i), border(i + 1)});
    }
  }
  std::ranges::stable_sort(blocks, std::greater<>(), &Block::size);
  return blocks;
}

// Rows [begin, end) of the gradient of one expert's matrix.
struct GradientSlab {
  int64_t expert;
  bool is_in;  // of w_in, else of w_out
  int64_t begin, end;
  int64_t cost;
};

std::vector<GradientSlab> SlabsOf(const Plan& plan, int64_t rows_in, int64_t rows_out) {
  std::vector<GradientSlab> slabs;
  for (size_t e = 0; e + 1 < plan.offsets.size(); ++e) {
    const int64_t tokens = plan.offsets[e + 1] - plan.offsets[e];
    for (const bool is_in : {true, false}) {
      const int64_t rows = is_in ? rows_in : rows_out;
      const int64_t parts = std::clamp<int64_t>(tokens / (2 * kBlockRows), 1, (rows + 63) / 64);
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t begin = rows * i / parts, end = rows * (i + 1) / parts;
        slabs.push_back({static_cast<int64_t>(e), is_in, begin, end, (end - begin) * tokens});
      }
    }
  }
  std::ranges::stable_sort(slabs, std::greater<>(), &GradientSlab::cost);
  return slabs;
}

// Calls task(i) for i < n, each once, on all threads of this process's share; a thread takes the
// next one when it is free. Products inside a task run on that thread alone.
template <typename Task>
void RunTasks(size_t n, const Task& task) {
  std::atomic<size_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (size_t i = next++; i < n; i = next++) task(i);
  });
}

at::Tensor Slice(const at::Tensor& matrix, int64_t begin, int64_t end) {
  return matrix.narrow(0, begin, end - begin);
}

// What the backward pass needs besides tensors.
struct Saved : torch::CustomClassHolder {
  Plan plan;
  FeedForwardKind kind = FeedForwardKind::kRelu;
  double scale = 1.0;
  at::ScalarType type = at::kFloat;
};

at::Tensor InnerMask(const InnerDropout& dropout, const Plan& plan, int64_t slots, int64_t width) {
  const size_t n = plan.slots.size();
  const int64_t per_sequence = dropout.tokens_per_sequence * slots;
  std::vector<int64_t> sequences(n), rows(n);
  for (size_t p = 0; p < n; ++p) {
    // A row of zeros may be masked like any other.
    const int64_t slot = std::max<int64_t>(plan.slots[p], 0);
    sequences[p] = slot / per_sequence;
    rows[p] = slot % per_sequence;
  }
  return DropoutMaskRows(dropout.stream, sequences.data(), rows.data(), static_cast<int64_t>(n),
                         width);
}

struct MixFunction : Function<MixFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_, const at::Tensor& weights_,
                            const at::Tensor& w_in, const OptionalTensor& b_in_,
                            const at::Tensor& w_out, const OptionalTensor& b_out_,
                            const at::Tensor& ids, FeedForwardKind kind,
                            const InnerDropout& dropout, bool in_bfloat16) {
    const at::Tensor b_in = b_in_.value_or(at::Tensor());
    const at::Tensor b_out = b_out_.value_or(at::Tensor());
    auto saved = c10::make_intrusive<Saved>();
    const at::Tensor x = x_.contiguous();
    const at::Tensor weights = weights_.contiguous();
    saved->kind = kind;
    saved->type = in_bfloat16 ? at::kBFloat16 : x.scalar_type();
    saved->plan = MakePlan(ids, w_in.size(0),
                           saved->type == at::kBFloat16 ? RowCounts::kFew : RowCounts::kAny);
    const Plan& plan = saved->plan;
    const auto options = x.options().dtype(saved->type);
    const int64_t N = x.size(0), D = x.size(1), K = ids.size(1);
    const int64_t F = w_out.size(2), H = w_in.size(1);
    const auto P = static_cast<int64_t>(plan.slots.size());
    const TypedKernels& k = KernelsFor(saved->type);

    // Dense: every expert's rows are x itself.
    at::Tensor sorted = plan.is_dense ? x.to(saved->type) : at::empty({P, D}, options);
    const at::Tensor in = w_in.to(saved->type);
    const at::Tensor out = w_out.to(saved->type);
    at::Tensor keep;
    if (dropout.stream.active()) {
      keep = InnerMask(dropout, plan, K, F);
      saved->scale = DropoutScale(dropout.stream.rate);
    }
    at::Tensor hidden = at::empty({P, H}, options);  // relu: turned into activations in place
    at::Tensor active = kind == FeedForwardKind::kRelu ? hidden : at::empty({P, F}, options);
    at::Tensor y = at::empty({P, D}, options);
    const Rows from(x, D), gathered(sorted, D), h(hidden, H), a(active, F), to(y, D);
    const std::vector<Block> blocks = BlocksOf(plan);
    RunTasks(blocks.size(), [&](size_t i) {
      const auto [e, begin, end] = blocks[i];
      for (int64_t p = begin; p < end && !plan.is_dense; ++p) {
        const int64_t slot = plan.slots[static_cast<size_t>(p)];
        if (slot >= 0) {
          k.narrow(from[slot / K], gathered[p], D);
        } else {
          Slice(sorted, p, p + 1).zero_();
        }
      }
      at::Tensor he = Slice(hidden, begin, end);
      at::mm_out(he, ExpertInput(sorted, plan, blocks[i]), in[e].t());
      at::Tensor ae = Slice(active, begin, end);
      switch (kind) {
        case FeedForwardKind::kRelu:
          k.bias_relu(h[begin], b_in.defined() ? RowOf(b_in, e) : nullptr,
                      keep.defined() ? keep.const_data_ptr<uint8_t>() + begin * F : nullptr,
                      saved->scale, a[begin], end - begin, F);
          break;
        case FeedForwardKind::kSwiglu:
          k.swiglu(h[begin], a[begin], end - begin, F);
          break;
        case FeedForwardKind::kGelu:
          at::gelu_out(ae, he);
          break;
        case FeedForwardKind::kSilu:
          at::silu_out(ae, he);
          break;
        case FeedForwardKind::kStatic:
          break;
      }
      at::Tensor ye = Slice(y, begin, end);
      at::mm_out(ye, ae, out[e].t());
      if (b_out.defined()) k.add_bias(to[begin], RowOf(b_out, e), end - begin, D);
    });

    at::Tensor result = at::empty_like(x);
    const Rows mixed(result, D), weight(weights, K);
    at::parallel_for(0, N, 64, [&](int64_t first, int64_t last) {
      std::vector<const void*> rows(static_cast<size_t>(K));
      for (int64_t n = first; n < last; ++n) {
        Locate(plan, to, n, K, rows);
        k.combine(rows.data(), weight[n], K, mixed[n], D);
      }
    });
    ctx->save_for_backward({sorted, weights, in, w_in, b_in, out, w_out, b_out, active,
                            kind == FeedForwardKind::kRelu ? at::Tensor() : hidden, y});
    ctx->saved_data["saved"] = c10::IValue::make_capsule(saved);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto tensors = ctx->get_saved_variables();
    const auto saved =
        c10::static_intrusive_pointer_cast<Saved>(ctx->saved_data["saved"].toCapsule());
    const Plan& plan = saved->plan;
    const at::Tensor &sorted = tensors[0], &weights = tensors[1], &in = tensors[2],
                     &w_in = tensors[3], &b_in = tensors[4], &out = tensors[5], &w_out = tensors[6],
                     &b_out = tensors[7], &active = tensors[8], &hidden = tensors[9],
                     &y = tensors[10];
    const at::Tensor g = grads[0].contiguous();
    const int64_t N = g.size(0), D = g.size(1), K = weights.size(1);
    const int64_t F = w_out.size(2), H = w_in.size(1);
    const auto P = static_cast<int64_t>(plan.slots.size());
    const TypedKernels& k = KernelsFor(saved->type);
    const auto options = g.options().dtype(saved->type);

    at::Tensor dweights = at::zeros_like(weights);
    at::Tensor dy = at::empty({P, D}, options);
    at::Tensor dsorted = at::empty({P, D}, options);
    at::Tensor dactive = at::empty({P, F}, options);
    at::Tensor dhidden =
        saved->kind == FeedForwardKind::kSwiglu ? at::empty({P, H}, options) : dactive;
    const Rows grad(g, D), rows_y(y, D), rows_dy(dy, D), a(active, F), da(dactive, F),
        dh(dhidden, H);
    const bool wide = weights.scalar_type() == at::kDouble;
    const auto weigh = [&](int64_t p) {
      const int64_t slot = plan.slots[static_cast<size_t>(p)];
      if (slot < 0) {
        Slice(dy, p, p + 1).zero_();
        return;
      }
      const double weight =
          wide ? weights.const_data_ptr<double>()[slot] : weights.const_data_ptr<float>()[slot];
      const double dot = k.expert_grad(grad[slot / K], rows_y[p], weight, rows_dy[p], D);
      if (wide) {
        dweights.mutable_data_ptr<double>()[slot] = dot;
      } else {
        dweights.mutable_data_ptr<float>()[slot] = static_cast<float>(dot);
      }
    };
    const std::vector<Block> blocks = BlocksOf(plan);
    RunTasks(blocks.size(), [&](size_t i) {
      const auto [e, begin, end] = blocks[i];
      for (int64_t p = begin; p < end; ++p) weigh(p);
      at::Tensor dae = Slice(dactive, begin, end);
      at::mm_out(dae, Slice(dy, begin, end), out[e]);
      switch (saved->kind) {
        case FeedForwardKind::kRelu:
          k.relu_grad(a[begin], da[begin], saved->scale, (end - begin) * F);
          break;
        case FeedForwardKind::kSwiglu:
          k.swiglu_grad(Rows(hidden, H)[begin], da[begin], dh[begin], end - begin, F);
          break;
        case FeedForwardKind::kGelu:
          at::gelu_backward_out(dae, dae.clone(), Slice(hidden, begin, end));
          break;
        case FeedForwardKind::kSilu:
          at::silu_backward_out(dae, dae.clone(), Slice(hidden, begin, end));
          break;
        case FeedForwardKind::kStatic:
          break;
      }
      at::Tensor dse = Slice(dsorted, begin, end);
      at::mm_out(dse, Slice(dhidden, begin, end), in[e]);
    });

    at::Tensor dw_in = at::empty_like(w_in);
    at::Tensor dw_out = at::empty_like(w_out);
    at::Tensor db_in = b_in.defined() ? at::zeros_like(b_in) : at::Tensor();
    at::Tensor db_out = b_out.defined() ? at::zeros_like(b_out) : at::Tensor();
    const std::vector<GradientSlab> slabs = SlabsOf(plan, H, D);
    RunTasks(slabs.size(), [&](size_t i) {
      const GradientSlab& slab = slabs[i];
      const int64_t e = slab.expert, rows = slab.end - slab.begin;
      const int64_t begin = plan.offsets[static_cast<size_t>(e)];
      const int64_t end = plan.offsets[static_cast<size_t>(e) + 1];
      at::Tensor target = (slab.is_in ? dw_in : dw_out)[e].narrow(0, slab.begin, rows);
      if (begin == end) {
        target.zero_();
        return;
      }
      const at::Tensor& of = slab.is_in ? dhidden : dy;
      Product(target, Slice(of, begin, end).narrow(1, slab.begin, rows).t(),
              slab.is_in ? ExpertInput(sorted, plan, {e, begin, end}) : Slice(active, begin, end));
      if (slab.begin != 0) return;
      const at::Tensor& db = slab.is_in ? db_in : db_out;
      if (!db.defined()) return;
      k.column_sum(slab.is_in ? dh[begin] : rows_dy[begin], const_cast<void*>(RowOf(db, e)),
                   end - begin, slab.is_in ? H : D);
    });

    at::Tensor dx = at::empty_like(g);
    const Rows rows_dx(dx, D), rows_ds(dsorted, D);
    at::parallel_for(0, N, 64, [&](int64_t first, int64_t last) {
      std::vector<const void*> rows(static_cast<size_t>(K));
      for (int64_t n = first; n < last; ++n) {
        Locate(plan, rows_ds, n, K, rows);
        k.add_rows(rows.data(), K, rows_dx[n], D);
      }
    });
    return {dx,     dweights,   dw_in,      db_in,      dw_out,
            db_out, Variable(), Variable(), Variable(), Variable()};
  }

  // Row i of a stacked parameter as a pointer.
  static const void* RowOf(const at::Tensor& stacked, int64_t i) {
    return static_cast<const char*>(stacked.const_data_ptr()) +
           i * stacked.stride(0) * static_cast<int64_t>(stacked.element_size());
  }

  // target = a b, in the products' type when that is not the target's.
  static void Product(at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
    if (a.scalar_type() == target.scalar_type()) {
      at::mm_out(target, a, b);
    } else {
      target.copy_(at::mm(a, b));
    }
  }

  static void Locate(const Plan& plan, const Rows& matrix, int64_t token, int64_t slots,
                     std::vector<const void*>& rows) {
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t row = plan.rows[static_cast<size_t>(token * slots + s)];
      rows[static_cast<size_t>(s)] = row < 0 ? nullptr : matrix[row];
    }
  }

  static at::Tensor ExpertInput(const at::Tensor& sorted, const Plan& plan, const Block& block) {
    const int64_t skipped =
        plan.is_dense ? plan.offsets[static_cast<size_t>(block.expert)] : int64_t{0};
    return Slice(sorted, block.begin - skipped, block.end - skipped);
  }
};

// The activation of `h` [.., H]: [.., F], in `h`'s type or a wider one.
at::Tensor Activate(FeedForwardKind kind, const at::Tensor& h, int64_t F) {
  switch (kind) {
    case FeedForwardKind::kRelu:
      return at::relu(h);
    case FeedForwardKind::kSwiglu: {
      const at::Tensor wide = h.to(WideType(h.scalar_type()));
      return at::silu(wide.narrow(1, 0, F)) * wide.narrow(1, F, F);
    }
    case FeedForwardKind::kGelu:
      return at::gelu(h);
    case FeedForwardKind::kSilu:
      return at::silu(h);
    case FeedForwardKind::kStatic:
      break;
  }
  return h;
}

// Whether the products of all experts are one kernel: it takes bfloat16 in rows of 16 bytes.
bool UsesGroups(at::ScalarType type, const Plan& plan, int64_t D, int64_t F) {
  return type == at::kBFloat16 && !plan.slots.empty() && D % 8 == 0 && F % 8 == 0;
}

// The same from ATen operations and their gradients, for tensors that are not the kernels'. Every
// gather reads no row twice (but for the row of zeros, whose gradient nobody wants): the sums of
// its backward pass have one term each, so that their order does not matter.
at::Tensor MixByAten(const at::Tensor& x, const Assignment& assignment, const Experts& experts,
                     const InnerDropout& dropout, at::ScalarType type) {
  const at::Tensor& ids = assignment.expert_ids;
  const int64_t N = x.size(0), D = x.size(1), K = ids.size(1), E = experts.w_in.size(0);
  const int64_t F = experts.w_out.size(2);
  const Plan plan = MakePlan(ids.cpu().contiguous(), E, RowCounts::kAny);
  const auto P = static_cast<int64_t>(plan.slots.size());
  const bool is_grouped = UsesGroups(type, plan, D, F);
  // Of one part each expert, or all experts' rows as one.
  std::vector<int64_t> sizes = {P};
  if (!is_grouped) {
    sizes.clear();
    for (size_t e = 0; e + 1 < plan.offsets.size(); ++e) {
      sizes.push_back(plan.offsets[e + 1] - plan.offsets[e]);
    }
  }

  std::vector<at::Tensor> inputs;
  if (plan.is_dense && !is_grouped) {
    inputs.assign(static_cast<size_t>(E), x.to(type));
  } else {
    const at::Tensor slots = at::tensor(plan.slots, at::kLong).to(x.device());
    const at::Tensor copies = x.to(type).unsqueeze(1).expand({N, K, D}).reshape({N * K, D});
    inputs = copies.index_select(0, slots).split_with_sizes(sizes);
  }
  std::vector<at::Tensor> masks;
  double scale = 1.0;
  if (dropout.stream.active()) {
    masks = InnerMask(dropout, plan, K, F).to(x.device()).eq(0).split_with_sizes(sizes);
    scale = DropoutScale(dropout.stream.rate);
  }
  at::Tensor ends;           // grouped
  at::Tensor expert_of_row;  // grouped, with biases
  if (is_grouped) {
    const std::vector<int32_t> last(plan.offsets.begin() + 1, plan.offsets.end());
    ends = at::tensor(last, at::kInt).to(x.device());
  }
  if (is_grouped && (experts.b_in.defined() || experts.b_out.defined())) {
    std::vector<int64_t> expert(static_cast<size_t>(P));
    for (int64_t e = 0; e < E; ++e) {
      std::fill(expert.begin() + plan.offsets[static_cast<size_t>(e)],
                expert.begin() + plan.offsets[static_cast<size_t>(e) + 1], e);
    }
    expert_of_row = at::one_hot(at::tensor(expert, at::kLong), E).to(x.device());
  }
  const at::Tensor in = experts.w_in.to(type), out = experts.w_out.to(type);
  // rows matrices[e]^T + bias[e] of part `e`.
  const auto product = [&](const at::Tensor& rows, const at::Tensor& matrices,
                           const at::Tensor& bias, size_t e) {
    if (is_grouped) {
      const at::Tensor y = at::_grouped_mm(rows, matrices.transpose(1, 2), ends);
      // By a matrix: a gather's gradient is added up in no fixed order on some devices.
      return bias.defined() ? y + at::mm(expert_of_row.to(bias.scalar_type()), bias) : y;
    }
    const auto i = static_cast<int64_t>(e);
    const at::Tensor y = at::mm(rows, matrices[i].t());
    return bias.defined() ? y + bias[i] : y;
  };
  std::vector<at::Tensor> parts;
  for (size_t e = 0; e < sizes.size(); ++e) {
    at::Tensor h = Activate(experts.kind, product(inputs[e], in, experts.b_in, e), F);
    if (!masks.empty() && experts.kind == FeedForwardKind::kRelu) {
      h = h.masked_fill(masks[e], 0.0) * scale;
    }
    parts.push_back(product(h.to(type), out, experts.b_out, e).to(type));
  }
  parts.push_back(at::zeros({1, D}, x.options().dtype(type)));
  // A slot that is not routed takes the row of zeros, which is the last one.
  std::vector<int64_t> rows = plan.rows;
  std::replace(rows.begin(), rows.end(), int64_t{-1}, P);
  const at::Tensor by_slot =
      at::cat(parts).index_select(0, at::tensor(rows, at::kLong).to(x.device())).view({N, K, D});
  return (assignment.weights.unsqueeze(2) * by_slot).sum(1);
}

void CheckShapes(const at::Tensor& x, const Assignment& assignment, const Experts& experts) {
  TORCH_CHECK(experts.kind != FeedForwardKind::kStatic,
              "static experts have no matrices to mix by");
  TORCH_CHECK(x.dim() == 2 && experts.w_in.dim() == 3 && x.size(1) == experts.w_in.size(2),
              "experts of ", experts.w_in.sizes(), " on ", x.sizes());
  TORCH_CHECK(assignment.expert_ids.dim() == 2 && assignment.expert_ids.size(0) == x.size(0) &&
                  assignment.weights.sizes() == assignment.expert_ids.sizes(),
              "assignment ", assignment.expert_ids.sizes(), ", weights ",
              assignment.weights.sizes(), " for ", x.size(0), " tokens");
}

}  // namespace

at::Tensor MixExperts(const at::Tensor& x, const Assignment& assignment, const Experts& experts,
                      const InnerDropout& dropout, Products products) {
  CheckShapes(x, assignment, experts);
  if (!UsesKernels(x)) {
    return MixByAten(x, assignment, experts, dropout,
                     products == Products::kBfloat16 ? at::kBFloat16 : x.scalar_type());
  }
  return MixFunction::apply(x, assignment.weights, experts.w_in, Optional(experts.b_in),
                            experts.w_out, Optional(experts.b_out),
                            assignment.expert_ids.contiguous(), experts.kind, dropout,
                            products == Products::kBfloat16);
}

at::Tensor MixVectors(const at::Tensor& vectors, const Assignment& assignment) {
  const at::Tensor& ids = assignment.expert_ids;
  TORCH_CHECK(vectors.dim() == 2 && ids.dim() == 2 && assignment.weights.sizes() == ids.sizes(),
              "assignment ", ids.sizes(), ", weights ", assignment.weights.sizes(), " of vectors ",
              vectors.sizes());
  // By a matrix of all weights: gathered rows would be added up in no fixed order on some devices.
  const at::Tensor routed = assignment.weights.masked_fill(ids.lt(0), 0.0);
  const at::Tensor by_expert =
      at::zeros({ids.size(0), vectors.size(0)}, routed.options().requires_grad(false))
          .scatter_add(1, ids.clamp_min(0), routed);
  return at::mm(by_expert.to(vectors.scalar_type()), vectors);
}

at::Tensor MixExpertsReference(const at::Tensor& x, const Assignment& assignment,
                               const Experts& experts, const InnerDropout& dropout,
                               Products products) {
  CheckShapes(x, assignment, experts);
  const at::Tensor& ids = assignment.expert_ids;
  const int64_t N = x.size(0), K = ids.size(1), F = experts.w_out.size(2);
  at::Tensor keep;
  double scale = 1.0;
  if (dropout.stream.active()) {
    const int64_t per_sequence = dropout.tokens_per_sequence;
    TORCH_CHECK(N % per_sequence == 0, N, " tokens in sequences of ", per_sequence);
    keep = DropoutMask(dropout.stream, N / per_sequence, per_sequence * K, F)
               .view({N, K, F})
               .to(x.device());
    scale = DropoutScale(dropout.stream.rate);
  }
  at::Tensor result = at::zeros_like(x);
  for (int64_t e = 0; e < experts.w_in.size(0); ++e) {
    const at::Tensor chosen = ids.eq(e);  // [N, K]
    at::Tensor h = Linear(x, experts.w_in[e],
                          experts.b_in.defined() ? experts.b_in[e] : at::Tensor(), products);
    switch (experts.kind) {
      case FeedForwardKind::kRelu:
        h = at::relu(h);
        break;
      case FeedForwardKind::kSwiglu:
        h = at::silu(h.narrow(1, 0, F)) * h.narrow(1, F, F);
        break;
      case FeedForwardKind::kGelu:
        h = at::gelu(h);
        break;
      case FeedForwardKind::kSilu:
        h = at::silu(h);
        break;
      case FeedForwardKind::kStatic:
        break;
    }
    if (keep.defined()) {
      h = h * (keep * chosen.unsqueeze(-1)).sum(1).to(h.scalar_type()) * scale;
    }
    const at::Tensor y = Linear(
        h, experts.w_out[e], experts.b_out.defined() ? experts.b_out[e] : at::Tensor(), products);
    const at::Tensor weight = (assignment.weights * chosen).sum(1, /*keepdim=*/true);
    result = result + weight * y.to(x.scalar_type());
  }
  return result;
}

}  // namespace switchyard::model
