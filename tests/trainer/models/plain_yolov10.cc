#include "tests/trainer/models/plain_yolov10.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace lockstep::tests {

namespace {

struct Scaling {
    std::array<std::int64_t, 5> widths;  ///< C1 to C5
    std::int64_t three, six;             ///< how many inner blocks the table's 3 and 6 become
};

const std::map<char, Scaling> scalings = {
    {'n', {{16, 32, 64, 128, 256}, 1, 2}},   {'s', {{32, 64, 128, 256, 512}, 1, 2}},
    {'m', {{48, 96, 192, 384, 576}, 2, 4}},  {'b', {{64, 128, 256, 512, 512}, 2, 4}},
    {'l', {{64, 128, 256, 512, 512}, 3, 6}}, {'x', {{80, 160, 320, 640, 640}, 3, 6}},
};

enum class Kind { convolution, c2f, down, pooling, attention, upsampling, concatenation };

/// A layer that takes what the row above gives. Variants are named by their letters.
struct Row {
    Kind kind;
    int width = 0;                           ///< output channels: 3 is C3
    int repeats = 0;                         ///< inner blocks of a C2f, before scaling
    std::string_view shortcut = "";          ///< variants where inner blocks add their input
    std::string_view compact_inverted = "";  ///< variants where inner blocks are compact inverted, else bottlenecks
    std::string_view large_kernel = "";      ///< variants where those have a depthwise 7x7
    std::size_t behind = 0;                  ///< of a concatenation: the row whose channels come second
};

constexpr std::string_view all = "nsmblx";

constexpr Row table[] = {
    /* 0*/ {.kind = Kind::convolution, .width = 1},
    /* 1*/ {.kind = Kind::convolution, .width = 2},
    /* 2*/ {.kind = Kind::c2f, .width = 2, .repeats = 3, .shortcut = all},
    /* 3*/ {.kind = Kind::convolution, .width = 3},
    /* 4*/ {.kind = Kind::c2f, .width = 3, .repeats = 6, .shortcut = all},
    /* 5*/ {.kind = Kind::down, .width = 4},
    /* 6*/ {.kind = Kind::c2f, .width = 4, .repeats = 6, .shortcut = all, .compact_inverted = "x"},
    /* 7*/ {.kind = Kind::down, .width = 5},
    /* 8*/
    {.kind = Kind::c2f, .width = 5, .repeats = 3, .shortcut = all, .compact_inverted = "smblx", .large_kernel = "s"},
    /* 9*/ {.kind = Kind::pooling},
    /*10*/ {.kind = Kind::attention},
    /*11*/ {.kind = Kind::upsampling},
    /*12*/ {.kind = Kind::concatenation, .behind = 6},
    /*13*/ {.kind = Kind::c2f, .width = 4, .repeats = 3, .shortcut = "blx", .compact_inverted = "blx"},
    /*14*/ {.kind = Kind::upsampling},
    /*15*/ {.kind = Kind::concatenation, .behind = 4},
    /*16*/ {.kind = Kind::c2f, .width = 3, .repeats = 3},
    /*17*/ {.kind = Kind::convolution, .width = 3},
    /*18*/ {.kind = Kind::concatenation, .behind = 13},
    /*19*/ {.kind = Kind::c2f, .width = 4, .repeats = 3, .shortcut = "mblx", .compact_inverted = "mblx"},
    /*20*/ {.kind = Kind::down, .width = 4},
    /*21*/ {.kind = Kind::concatenation, .behind = 10},
    /*22*/
    {.kind = Kind::c2f, .width = 5, .repeats = 3, .shortcut = all, .compact_inverted = all, .large_kernel = "ns"},
};
constexpr std::array<std::size_t, 3> head_rows = {16, 19, 22};

struct Window {
    std::int64_t kernel = 1, stride = 1, groups = 1;
};

/// One pass over the table. Blocks take their name in the state and their input.
class Walk {
  public:
    Walk(char variant, std::int64_t classes, State& state)
        : variant_(variant), scaling_(scalings.at(variant)), classes_(classes), state_(state) {}

    PlainMaps run(const at::Tensor& images) {
        std::vector<at::Tensor> outputs;
        for (const Row& row : table) {
            const std::string name = "model." + std::to_string(outputs.size());
            const at::Tensor& input = outputs.empty() ? images : outputs.back();
            outputs.push_back(row.kind == Kind::concatenation ? at::cat({input, outputs.at(row.behind)}, 1)
                                                              : layer(row, name, input));
        }
        std::vector<at::Tensor> features;
        for (const std::size_t row : head_rows) {
            features.push_back(outputs.at(row));
        }
        draw("model.23.dfl.conv.weight", [] { return at::arange(16, at::kDouble).view({1, 16, 1, 1}); });
        return {head("model.23.", features), head("model.23.one2one_", features)};
    }

  private:
    bool is_among(std::string_view variants) const { return variants.find(variant_) != std::string_view::npos; }

    template <typename Make>
    at::Tensor draw(const std::string& name, const Make& make) {
        if (!state_.contains(name)) {
            state_[name] = make();
        }
        return state_[name];
    }

    at::Tensor uniform(const std::string& name, at::IntArrayRef shape, double low, double high) {
        return draw(name, [&] { return at::empty(shape, at::kDouble).uniform_(low, high, generator_); });
    }

    /// Wide enough to keep the size of what passes through it and SiLU.
    at::Tensor convolution_weight(const std::string& name, at::IntArrayRef shape) {
        const double bound = std::sqrt(6.0 / static_cast<double>(shape[1] * shape[2] * shape[3]));
        return uniform(name, shape, -bound, bound);
    }

    at::Tensor conv_bn(const std::string& name, const at::Tensor& x, std::int64_t out_channels, Window window = {}) {
        const auto [kernel, stride, groups] = window;
        const at::Tensor weight =
            convolution_weight(name + ".conv.weight", {out_channels, x.size(1) / groups, kernel, kernel});
        const at::Tensor gamma = uniform(name + ".bn.weight", {out_channels}, 0.5, 1.5);
        const at::Tensor beta = uniform(name + ".bn.bias", {out_channels}, -0.5, 0.5);
        const at::Tensor mean = uniform(name + ".bn.running_mean", {out_channels}, -0.5, 0.5);
        const at::Tensor variance = uniform(name + ".bn.running_var", {out_channels}, 0.5, 1.5);
        draw(name + ".bn.num_batches_tracked", [] { return at::zeros({}, at::kLong); });
        return at::batch_norm(at::conv2d(x, weight, {}, stride, kernel / 2, /*dilation=*/1, groups), gamma, beta, mean,
                              variance, /*training=*/false, /*momentum=*/0.03, /*eps=*/1e-3, /*cudnn_enabled=*/false);
    }

    at::Tensor conv_bn_silu(const std::string& name, const at::Tensor& x, std::int64_t out_channels,
                            Window window = {}) {
        return at::silu(conv_bn(name, x, out_channels, window));
    }

    at::Tensor layer(const Row& row, const std::string& name, const at::Tensor& x) {
        const std::int64_t out_channels = row.width == 0 ? x.size(1) : scaling_.widths.at(row.width - 1);
        switch (row.kind) {
            case Kind::convolution:
                return conv_bn_silu(name, x, out_channels, {.kernel = 3, .stride = 2});
            case Kind::c2f:
                return c2f(row, name, x, out_channels);
            case Kind::down:
                return conv_bn(name + ".cv2", conv_bn_silu(name + ".cv1", x, out_channels), out_channels,
                               {.kernel = 3, .stride = 2, .groups = out_channels});
            case Kind::pooling:
                return pooling(name, x);
            case Kind::attention:
                return partial_attention(name, x);
            case Kind::upsampling:
                return x.repeat_interleave(2, 2).repeat_interleave(2, 3);
            case Kind::concatenation:
                break;
        }
        return {};
    }

    at::Tensor c2f(const Row& row, const std::string& name, const at::Tensor& x, std::int64_t out_channels) {
        const std::int64_t half = out_channels / 2;
        const at::Tensor both = conv_bn_silu(name + ".cv1", x, 2 * half);
        std::vector<at::Tensor> parts = {both.narrow(1, 0, half), both.narrow(1, half, half)};
        for (std::int64_t i = 0; i < (row.repeats == 3 ? scaling_.three : scaling_.six); ++i) {
            const std::string inner = name + ".m." + std::to_string(i);
            const at::Tensor input = parts.back();
            const at::Tensor y =
                is_among(row.compact_inverted)
                    ? compact_inverted(inner, input, is_among(row.large_kernel))
                    : conv_bn_silu(inner + ".cv2", conv_bn_silu(inner + ".cv1", input, half, {.kernel = 3}), half,
                                   {.kernel = 3});
            parts.push_back(is_among(row.shortcut) ? input + y : y);
        }
        return conv_bn_silu(name + ".cv2", at::cat(parts, 1), out_channels);
    }

    at::Tensor compact_inverted(const std::string& name, const at::Tensor& x, bool large_kernel) {
        const std::int64_t width = x.size(1), inner = 2 * width;
        at::Tensor y = conv_bn_silu(name + ".cv1.0", x, width, {.kernel = 3, .groups = width});
        y = conv_bn_silu(name + ".cv1.1", y, inner);
        y = large_kernel ? at::silu(conv_bn(name + ".cv1.2.conv", y, inner, {.kernel = 7, .groups = inner}) +
                                    conv_bn(name + ".cv1.2.conv1", y, inner, {.kernel = 3, .groups = inner}))
                         : conv_bn_silu(name + ".cv1.2", y, inner, {.kernel = 3, .groups = inner});
        y = conv_bn_silu(name + ".cv1.3", y, width);
        return conv_bn_silu(name + ".cv1.4", y, width, {.kernel = 3, .groups = width});
    }

    at::Tensor pooling(const std::string& name, const at::Tensor& x) {
        const auto pool = [](const at::Tensor& map) { return at::max_pool2d(map, 5, /*stride=*/1, /*padding=*/2); };
        const at::Tensor y0 = conv_bn_silu(name + ".cv1", x, x.size(1) / 2);
        const at::Tensor y1 = pool(y0), y2 = pool(y1), y3 = pool(y2);
        return conv_bn_silu(name + ".cv2", at::cat({y0, y1, y2, y3}, 1), x.size(1));
    }

    at::Tensor partial_attention(const std::string& name, const at::Tensor& x) {
        const std::int64_t half = x.size(1) / 2;
        const at::Tensor both = conv_bn_silu(name + ".cv1", x, 2 * half);
        const at::Tensor a = both.narrow(1, 0, half);
        at::Tensor b = both.narrow(1, half, half);
        b = b + attention(name + ".attn", b);
        b = b + conv_bn(name + ".ffn.1", conv_bn_silu(name + ".ffn.0", b, 2 * half), half);
        return conv_bn_silu(name + ".cv2", at::cat({a, b}, 1), x.size(1));
    }

    at::Tensor attention(const std::string& name, const at::Tensor& x) {
        const std::int64_t batch = x.size(0), width = x.size(1), cells = x.size(2) * x.size(3);
        const std::int64_t heads = width / 64, value_dim = width / heads, key_dim = value_dim / 2;
        const at::Tensor qkv =
            conv_bn(name + ".qkv", x, 2 * width).reshape({batch, heads, 2 * key_dim + value_dim, cells});
        const at::Tensor q = qkv.narrow(2, 0, key_dim), k = qkv.narrow(2, key_dim, key_dim),
                         v = qkv.narrow(2, 2 * key_dim, value_dim);
        const at::Tensor logits = at::matmul(q.transpose(2, 3), k) / std::sqrt(static_cast<double>(key_dim));
        const at::Tensor mixed = at::matmul(v, at::softmax(logits, -1).transpose(2, 3));
        const at::Tensor position = conv_bn(name + ".pe", v.reshape(x.sizes()), width, {.kernel = 3, .groups = width});
        return conv_bn(name + ".proj", mixed.reshape(x.sizes()) + position, width);
    }

    std::vector<at::Tensor> head(const std::string& name, const std::vector<at::Tensor>& features) {
        const std::int64_t c3 = features[0].size(1), distances = 4 * 16;
        const std::int64_t box_width = std::max({std::int64_t{16}, c3 / 4, distances});
        const std::int64_t class_width = std::max(c3, std::min<std::int64_t>(classes_, 100));
        std::vector<at::Tensor> maps;
        for (std::size_t level = 0; level < features.size(); ++level) {
            const at::Tensor& x = features[level];
            const std::string box_name = name + "cv2." + std::to_string(level);
            const std::string class_name = name + "cv3." + std::to_string(level);
            at::Tensor box = conv_bn_silu(box_name + ".0", x, box_width, {.kernel = 3});
            box = conv_bn_silu(box_name + ".1", box, box_width, {.kernel = 3});
            at::Tensor classes = separable(class_name + ".0", x, class_width);
            classes = separable(class_name + ".1", classes, class_width);
            maps.push_back(
                at::cat({biased(box_name + ".2", box, distances), biased(class_name + ".2", classes, classes_)}, 1));
        }
        return maps;
    }

    at::Tensor separable(const std::string& name, const at::Tensor& x, std::int64_t out_channels) {
        const at::Tensor y = conv_bn_silu(name + ".0", x, x.size(1), {.kernel = 3, .groups = x.size(1)});
        return conv_bn_silu(name + ".1", y, out_channels);
    }

    at::Tensor biased(const std::string& name, const at::Tensor& x, std::int64_t out_channels) {
        return at::conv2d(x, convolution_weight(name + ".weight", {out_channels, x.size(1), 1, 1}),
                          uniform(name + ".bias", {out_channels}, -0.5, 0.5));
    }

    char variant_;
    const Scaling& scaling_;
    std::int64_t classes_;
    State& state_;
    at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
};

}  // namespace

PlainMaps plain_yolov10(char variant, std::int64_t classes, const at::Tensor& images, State& state) {
    return Walk(variant, classes, state).run(images);
}

}  // namespace lockstep::tests
