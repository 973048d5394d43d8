#include "trainer/evaluation/coco_evaluation.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::trainer::coco {

using base::Error;
using base::str;

namespace {

constexpr std::size_t T = iou_threshold_count;
constexpr std::size_t R = recall_threshold_count;
constexpr std::size_t A = area_range_count;
constexpr std::size_t M = detection_limit_count;
static_assert(A * T <= 64, "the masks of MatchedDetection are 64 bits wide");

constexpr std::size_t bit_of(std::size_t area, std::size_t iou) {
    return area * T + iou;
}

/// As numpy.linspace(first, last, n) rounds them.
template <std::size_t n>
constexpr std::array<double, n> evenly_spaced(double first, double last) {
    std::array<double, n> values{};
    const double step = (last - first) / static_cast<double>(n - 1);
    for (std::size_t i = 0; i < n; ++i) {
        values[i] = static_cast<double>(i) * step + first;
    }
    values[n - 1] = last;
    return values;
}

constexpr std::array<double, T> iou_thresholds = evenly_spaced<T>(0.5, 0.95);
constexpr std::array<double, R> recall_thresholds = evenly_spaced<R>(0.0, 1.0);

struct AreaRange {
    const char* name;
    double least, greatest;
    bool contains(double area) const { return area >= least && area <= greatest; }
};
constexpr std::array<AreaRange, A> area_ranges = {{{"all", 0.0, 1e5 * 1e5},
                                                   {"small", 0.0, 32.0 * 32.0},
                                                   {"medium", 32.0 * 32.0, 96.0 * 96.0},
                                                   {"large", 96.0 * 96.0, 1e5 * 1e5}}};

/// Calls work(i) for each i < count on up to `threads` threads (0: all usable cores) and rethrows the first exception.
void for_each_index(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work) {
    std::atomic<std::size_t> next{0};
    const auto take = [&] {
        for (std::size_t i = next++; i < count; i = next++) {
            work(i);
        }
    };
    const std::size_t wanted = threads == 0 ? base::usable_cores() : threads;
    std::vector<std::future<void>> helpers;
    for (std::size_t i = 1; i < std::min(wanted, count); ++i) {
        helpers.push_back(std::async(std::launch::async, take));
    }
    take();
    for (auto& helper : helpers) {
        helper.get();
    }
}

double intersection_over_union(const Box& detection, const Box& truth, bool crowd) {
    const double width =
        std::fmin(detection.width + detection.x, truth.width + truth.x) - std::fmax(detection.x, truth.x);
    if (width <= 0) {
        return 0;
    }
    const double height =
        std::fmin(detection.height + detection.y, truth.height + truth.y) - std::fmax(detection.y, truth.y);
    if (height <= 0) {
        return 0;
    }
    const double intersection = width * height;
    const double detection_area = detection.width * detection.height;
    const double denominator = crowd ? detection_area : detection_area + truth.width * truth.height - intersection;
    return intersection / denominator;
}

/// Positions of values in a list without repetitions.
class IndexOf {
  public:
    explicit IndexOf(std::span<const std::int64_t> values) {
        positions_.reserve(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            positions_.emplace(values[i], i);
        }
    }

    std::optional<std::size_t> find(std::int64_t value) const {
        const auto found = positions_.find(value);
        return found == positions_.end() ? std::nullopt : std::optional(found->second);
    }

  private:
    std::unordered_map<std::int64_t, std::size_t> positions_;
};

/// A record of the input in the place where matching wants it.
struct Entry {
    std::uint32_t record;
    std::int32_t category_index;
};

/// Entries of all images, image after image, each image's in the order of the records.
struct EntriesByImage {
    std::vector<std::size_t> begin;  ///< of image i; one more than there are images
    std::vector<Entry> entries;

    std::span<Entry> of(std::size_t image) {
        return std::span(entries).subspan(begin[image], begin[image + 1] - begin[image]);
    }
};

bool is_finite(const Box& box) {
    return std::isfinite(box.x) && std::isfinite(box.y) && std::isfinite(box.width) && std::isfinite(box.height);
}

void require_finite(const GroundTruthBox& truth, std::size_t record) {
    if (!is_finite(truth.box) || !std::isfinite(truth.area)) {
        throw Error(str("box ", record, " (annotation ", truth.id, "): a coordinate or the area is not finite"));
    }
}

void require_finite(const Detection& detection, std::size_t record) {
    if (!std::isfinite(detection.score)) {
        throw Error(str("detection ", record, " (image ", detection.image_id, "): the score is ", detection.score,
                        ", which has no place in an order by score; has the training diverged?"));
    }
    if (!is_finite(detection.box)) {
        throw Error(str("detection ", record, " (image ", detection.image_id, "): a coordinate is not finite"));
    }
}

/// Counting sort by image. Records of unknown categories are left out and counted.
template <typename Record>
EntriesByImage sort_by_image(std::span<const Record> records, const char* what, std::size_t image_count,
                             const IndexOf& images, const IndexOf& categories, std::uint64_t& left_out) {
    if (records.size() > std::numeric_limits<std::uint32_t>::max()) {
        throw Error(
            str(records.size(), " ", what, "s are more than one shard can hold; cut the images into more shards"));
    }
    constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
    std::vector<std::size_t> image_of(records.size(), nowhere);
    std::vector<std::int32_t> category_of(records.size());
    EntriesByImage sorted;
    sorted.begin.resize(image_count + 1);
    for (std::size_t i = 0; i < records.size(); ++i) {
        const Record& record = records[i];
        require_finite(record, i);
        const auto image = images.find(record.image_id);
        if (!image) {
            throw Error(str(what, " ", i, ": image ", record.image_id, " is not among the images that are evaluated"));
        }
        const auto category = categories.find(record.category);
        if (!category) {
            ++left_out;
            continue;
        }
        image_of[i] = *image;
        category_of[i] = static_cast<std::int32_t>(*category);
        ++sorted.begin[*image + 1];
    }
    std::partial_sum(sorted.begin.begin(), sorted.begin.end(), sorted.begin.begin());
    sorted.entries.resize(sorted.begin.back());
    std::vector<std::size_t> next(sorted.begin.begin(), sorted.begin.end() - 1);
    for (std::size_t i = 0; i < records.size(); ++i) {
        if (image_of[i] != nowhere) {
            sorted.entries[next[image_of[i]]++] = {static_cast<std::uint32_t>(i), category_of[i]};
        }
    }
    return sorted;
}

/// Greedy matching within one image and category, and the memory that it needs.
class Matcher {
  public:
    Matcher(std::span<const GroundTruthBox> boxes, std::span<const Detection> detections, const Options& options)
        : boxes_(boxes), detections_(detections), options_(options) {}

    /// All entries are of one category; those of detections are in the order of falling scores. Appends the detections
    /// up to the last limit to `matched` and adds to `positive_count` [A].
    void match(std::span<const Entry> truths, std::span<const Entry> found, std::span<std::int64_t> positive_count,
               std::vector<MatchedDetection>& matched) {
        found = found.first(std::min(found.size(), static_cast<std::size_t>(options_.max_detections.back())));
        const std::size_t first = matched.size();
        for (std::size_t d = 0; d < found.size(); ++d) {
            const Detection& detection = detections_[found[d].record];
            matched.push_back({.image_id = detection.image_id,
                               .score = detection.score,
                               .category_index = found[d].category_index,
                               .position = static_cast<std::int32_t>(d)});
        }
        const std::span<MatchedDetection> results = std::span(matched).subspan(first);
        find_candidates(truths, found);
        for (std::size_t area = 0; area < A; ++area) {
            order_truths(truths, area_ranges[area]);
            positive_count[area] += std::ranges::count(ignored_, false);
            for (std::size_t iou = 0; iou < T && !candidates_.empty(); ++iou) {
                match_at(truths, std::min(iou_thresholds[iou], 1 - 1e-10), std::uint64_t{1} << bit_of(area, iou),
                         results);
            }
            ignore_unmatched_outside(area, found, results);
        }
    }

  private:
    /// A detection that overlaps some box enough for the lowest threshold; the others can't match at any.
    struct Candidate {
        std::size_t detection;
        std::size_t first_iou;  ///< into ious_, one for each box
    };

    void find_candidates(std::span<const Entry> truths, std::span<const Entry> found) {
        candidates_.clear();
        ious_.clear();
        for (std::size_t d = 0; d < found.size(); ++d) {
            const std::size_t first = ious_.size();
            bool is_candidate = false;
            for (const Entry& truth : truths) {
                const GroundTruthBox& box = boxes_[truth.record];
                ious_.push_back(intersection_over_union(detections_[found[d].record].box, box.box, box.crowd));
                is_candidate |= !(ious_.back() < iou_thresholds.front());
            }
            if (is_candidate) {
                candidates_.push_back({d, first});
            } else {
                ious_.resize(first);
            }
        }
    }

    /// Regular boxes first, then those that don't count in this range.
    void order_truths(std::span<const Entry> truths, const AreaRange& range) {
        const auto is_ignored = [&](std::size_t i) {
            const GroundTruthBox& box = boxes_[truths[i].record];
            return box.crowd || (options_.honor_ignore && box.ignore) || !range.contains(box.area);
        };
        order_.clear();
        for (const bool wanted : {false, true}) {
            for (std::size_t i = 0; i < truths.size(); ++i) {
                if (is_ignored(i) == wanted) {
                    order_.push_back(i);
                }
            }
        }
        ignored_.clear();
        for (const std::size_t i : order_) {
            ignored_.push_back(is_ignored(i));
        }
    }

    void match_at(std::span<const Entry> truths, double threshold, std::uint64_t bit,
                  std::span<MatchedDetection> results) {
        taken_.assign(order_.size(), false);
        for (const Candidate& candidate : candidates_) {
            double best_iou = threshold;
            std::optional<std::size_t> best;
            for (std::size_t g = 0; g < order_.size(); ++g) {
                if (taken_[g] && !boxes_[truths[order_[g]].record].crowd) {
                    continue;
                }
                if (best && !ignored_[*best] && ignored_[g]) {
                    break;
                }
                // Equality replaces: of equal overlaps the later box wins.
                const double iou = ious_[candidate.first_iou + order_[g]];
                if (iou < best_iou) {
                    continue;
                }
                best_iou = iou;
                best = g;
            }
            if (!best) {
                continue;
            }
            taken_[*best] = true;
            MatchedDetection& result = results[candidate.detection];
            if (ignored_[*best]) {
                result.ignored |= bit;
            }
            // pycocotools keeps the annotation's id as the mark of a match, so that id 0 reads as "none".
            if (boxes_[truths[order_[*best]].record].id != 0 || options_.fix_zero_ids) {
                result.matched |= bit;
            }
        }
    }

    void ignore_unmatched_outside(std::size_t area, std::span<const Entry> found,
                                  std::span<MatchedDetection> results) const {
        constexpr std::uint64_t all_thresholds = (std::uint64_t{1} << T) - 1;
        for (std::size_t d = 0; d < found.size(); ++d) {
            const Box& box = detections_[found[d].record].box;
            if (!area_ranges[area].contains(box.width * box.height)) {
                results[d].ignored |= ~results[d].matched & (all_thresholds << bit_of(area, 0));
            }
        }
    }

    std::span<const GroundTruthBox> boxes_;
    std::span<const Detection> detections_;
    const Options& options_;
    std::vector<double> ious_;
    std::vector<Candidate> candidates_;
    std::vector<std::size_t> order_;  ///< of the boxes in the present area range
    std::vector<char> ignored_;       ///< in this order
    std::vector<char> taken_;         ///< in this order
};

/// Takes the entries of the least category off the front.
std::span<const Entry> take_category(std::span<const Entry>& entries, std::int32_t category_index) {
    const auto end = std::ranges::find_if(entries, [&](const Entry& e) { return e.category_index != category_index; });
    const auto taken = entries.first(static_cast<std::size_t>(end - entries.begin()));
    entries = entries.subspan(taken.size());
    return taken;
}

/// What one thread makes of some neighbouring images.
struct Part {
    std::vector<std::int64_t> positive_count;
    std::vector<MatchedDetection> detections;
};

void match_image(Matcher& matcher, std::span<Entry> truths, std::span<Entry> found,
                 std::span<const Detection> detections, Part& part) {
    std::ranges::stable_sort(truths, {}, &Entry::category_index);
    std::ranges::stable_sort(found, [&](const Entry& a, const Entry& b) {
        return a.category_index != b.category_index ? a.category_index < b.category_index
                                                    : detections[a.record].score > detections[b.record].score;
    });
    std::span<const Entry> truths_left = truths;
    std::span<const Entry> found_left = found;
    while (!truths_left.empty() || !found_left.empty()) {
        constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
        const std::int32_t category = std::min(truths_left.empty() ? none : truths_left.front().category_index,
                                               found_left.empty() ? none : found_left.front().category_index);
        const auto positive_count = std::span(part.positive_count).subspan(static_cast<std::size_t>(category) * A, A);
        const auto truths_of_category = take_category(truths_left, category);
        const auto found_of_category = take_category(found_left, category);
        matcher.match(truths_of_category, found_of_category, positive_count, part.detections);
    }
}

std::vector<std::int64_t> sorted(std::span<const std::int64_t> values) {
    std::vector<std::int64_t> result(values.begin(), values.end());
    std::ranges::sort(result);
    return result;
}

void require_no_repetition(const std::vector<std::int64_t>& sorted_values, std::string_view what) {
    const auto repeated = std::ranges::adjacent_find(sorted_values);
    if (repeated != sorted_values.end()) {
        throw Error(str(what, " ", *repeated, " is evaluated more than once; every image and category counts once"));
    }
}

void add(std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& values) {
    std::ranges::transform(sums, values, sums.begin(), std::plus{});
}

}  // namespace

void require_valid(const Options& options) {
    const auto& limits = options.max_detections;
    if (limits.front() < 1 || std::ranges::adjacent_find(limits, std::greater_equal{}) != limits.end()) {
        throw base::UsageError(str("the detection limits ", limits[0], ", ", limits[1], ", ", limits[2],
                                   " must be three numbers that rise from at least 1"));
    }
}

EvaluationShard match_images(std::span<const std::int64_t> image_ids, std::span<const std::int64_t> categories,
                             std::span<const GroundTruthBox> boxes, std::span<const Detection> detections,
                             const Options& options) {
    require_valid(options);
    EvaluationShard shard{
        .max_detections = options.max_detections, .categories = sorted(categories), .image_ids = sorted(image_ids)};
    require_no_repetition(shard.categories, "category");
    require_no_repetition(shard.image_ids, "image");

    const IndexOf image_index(shard.image_ids);
    const IndexOf category_index(shard.categories);
    const std::size_t image_count = shard.image_ids.size();
    std::uint64_t boxes_left_out = 0;
    EntriesByImage truths = sort_by_image(boxes, "box", image_count, image_index, category_index, boxes_left_out);
    EntriesByImage found = sort_by_image(detections, "detection", image_count, image_index, category_index,
                                         shard.detections_of_unknown_category);

    constexpr std::size_t images_per_part = 64;
    const std::size_t count_size = shard.categories.size() * A;
    std::vector<Part> parts((image_count + images_per_part - 1) / images_per_part);
    for_each_index(parts.size(), options.threads, [&](std::size_t p) {
        Matcher matcher(boxes, detections, options);
        parts[p].positive_count.resize(count_size);
        for (std::size_t i = p * images_per_part; i < std::min(image_count, (p + 1) * images_per_part); ++i) {
            match_image(matcher, truths.of(i), found.of(i), detections, parts[p]);
        }
    });

    shard.positive_count.resize(count_size);
    shard.detections.reserve(found.entries.size());
    for (const Part& part : parts) {
        add(shard.positive_count, part.positive_count);
        shard.detections.insert(shard.detections.end(), part.detections.begin(), part.detections.end());
    }
    return shard;
}

EvaluationShard merge(std::span<const EvaluationShard> shards) {
    LOCKSTEP_CHECK(!shards.empty(), "no shards to merge");
    EvaluationShard whole{.max_detections = shards.front().max_detections,
                          .categories = shards.front().categories,
                          .positive_count = std::vector<std::int64_t>(shards.front().categories.size() * A)};
    for (const EvaluationShard& shard : shards) {
        if (shard.categories != whole.categories || shard.max_detections != whole.max_detections) {
            throw Error(
                "parts of an evaluation differ in categories or detection limits; all ranks must evaluate the same "
                "data set with the same options");
        }
        whole.image_ids.insert(whole.image_ids.end(), shard.image_ids.begin(), shard.image_ids.end());
        add(whole.positive_count, shard.positive_count);
        whole.detections.insert(whole.detections.end(), shard.detections.begin(), shard.detections.end());
        whole.detections_of_unknown_category += shard.detections_of_unknown_category;
    }
    std::ranges::sort(whole.image_ids);
    require_no_repetition(whole.image_ids, "image");
    return whole;
}

namespace {

/// First in the bytes of a shard; the arrays follow in the order of their counts.
struct ShardHeader {
    std::uint64_t magic = 0x31304F434F434C4B;
    std::uint64_t categories = 0;
    std::uint64_t images = 0;
    std::uint64_t detections = 0;
    std::uint64_t detections_of_unknown_category = 0;
    std::array<std::int32_t, M> max_detections{};
    std::int32_t reserved = 0;
};
static_assert(sizeof(ShardHeader) == 56 && sizeof(MatchedDetection) == 40,
              "without padding, so that all bytes are defined");

template <typename Value>
void append(std::vector<std::byte>& bytes, std::span<const Value> values) {
    static_assert(std::is_trivially_copyable_v<Value>);
    const auto raw = std::as_bytes(values);
    // Not insert(): g++ 12 sees an overflow in it that is not there.
    bytes.resize(bytes.size() + raw.size());
    std::ranges::copy(raw, bytes.end() - static_cast<std::ptrdiff_t>(raw.size()));
}

/// `bytes` must hold `count` values; takes them off the front.
template <typename Value>
std::vector<Value> take(std::span<const std::byte>& bytes, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<Value>);
    if (count > bytes.size() / sizeof(Value)) {
        throw Error("a rank's part of the evaluation is cut short");
    }
    std::vector<Value> values(count);
    if (count > 0) {
        std::memcpy(values.data(), bytes.data(), count * sizeof(Value));
    }
    bytes = bytes.subspan(count * sizeof(Value));
    return values;
}

}  // namespace

std::vector<std::byte> EvaluationShard::to_bytes() const {
    const ShardHeader header{.categories = categories.size(),
                             .images = image_ids.size(),
                             .detections = detections.size(),
                             .detections_of_unknown_category = detections_of_unknown_category,
                             .max_detections = max_detections};
    std::vector<std::byte> bytes;
    bytes.reserve(sizeof(header) + (categories.size() * (1 + A) + image_ids.size()) * sizeof(std::int64_t) +
                  detections.size() * sizeof(MatchedDetection));
    append(bytes, std::span(&header, 1));
    append<std::int64_t>(bytes, categories);
    append<std::int64_t>(bytes, image_ids);
    append<std::int64_t>(bytes, positive_count);
    append<MatchedDetection>(bytes, detections);
    return bytes;
}

EvaluationShard EvaluationShard::from_bytes(std::span<const std::byte> bytes) {
    const ShardHeader header = take<ShardHeader>(bytes, 1).front();
    if (header.magic != ShardHeader{}.magic) {
        throw Error("a rank's part of the evaluation is of another kind; do all ranks run the same program?");
    }
    EvaluationShard shard;
    shard.max_detections = header.max_detections;
    shard.detections_of_unknown_category = header.detections_of_unknown_category;
    shard.categories = take<std::int64_t>(bytes, header.categories);
    shard.image_ids = take<std::int64_t>(bytes, header.images);
    shard.positive_count = take<std::int64_t>(bytes, header.categories * A);
    shard.detections = take<MatchedDetection>(bytes, header.detections);
    if (!bytes.empty()) {
        throw Error("a rank's part of the evaluation has bytes left over");
    }
    for (const MatchedDetection& detection : shard.detections) {
        if (detection.category_index < 0 ||
            static_cast<std::size_t>(detection.category_index) >= shard.categories.size()) {
            throw Error("a rank's part of the evaluation names a category that it doesn't have");
        }
    }
    return shard;
}

namespace {

/// The detections of each category, best score first; of equal scores the lower image id first, then the earlier
/// position.
std::vector<std::vector<MatchedDetection>> rank_by_category(const EvaluationShard& shard, unsigned threads) {
    std::vector<std::vector<MatchedDetection>> ranked(shard.categories.size());
    for (const MatchedDetection& detection : shard.detections) {
        ranked[static_cast<std::size_t>(detection.category_index)].push_back(detection);
    }
    for_each_index(ranked.size(), threads, [&](std::size_t k) {
        std::ranges::sort(ranked[k], [](const MatchedDetection& a, const MatchedDetection& b) {
            if (a.score != b.score) {
                return a.score > b.score;
            }
            return a.image_id != b.image_id ? a.image_id < b.image_id : a.position < b.position;
        });
    });
    return ranked;
}

/// Writes the cells of one category. Different categories may be done at once.
void accumulate_category(std::size_t k, std::span<const MatchedDetection> ranked,
                         std::span<const std::int64_t> positive_count, Result& result) {
    std::vector<MatchedDetection> counted;
    std::vector<double> precision;  // after each hit
    for (std::size_t m = 0; m < M; ++m) {
        counted.clear();
        std::ranges::copy_if(ranked, std::back_inserter(counted),
                             [&](const MatchedDetection& d) { return d.position < result.max_detections[m]; });
        for (std::size_t a = 0; a < A; ++a) {
            if (positive_count[a] == 0) {
                continue;
            }
            const auto positives = static_cast<double>(positive_count[a]);
            for (std::size_t t = 0; t < T; ++t) {
                const std::size_t bit = bit_of(a, t);
                std::size_t rank = 0;  // hits and false alarms so far
                precision.clear();
                for (const MatchedDetection& detection : counted) {
                    if ((detection.ignored >> bit & 1) != 0) {
                        continue;
                    }
                    ++rank;
                    if ((detection.matched >> bit & 1) != 0) {
                        const auto hits = static_cast<double>(precision.size() + 1);
                        precision.push_back(hits /
                                            (static_cast<double>(rank) + std::numeric_limits<double>::epsilon()));
                    }
                }
                result.recall[result.recall_index(t, k, a, m)] = static_cast<double>(precision.size()) / positives;
                // The greatest precision at this or a higher recall; between hits it only falls, so hits are enough.
                for (std::size_t i = precision.size(); i-- > 1;) {
                    precision[i - 1] = std::max(precision[i - 1], precision[i]);
                }
                std::size_t hit = 0;
                for (std::size_t r = 0; r < R; ++r) {
                    while (hit < precision.size() && static_cast<double>(hit + 1) / positives < recall_thresholds[r]) {
                        ++hit;
                    }
                    result.precision[result.precision_index(t, r, k, a, m)] =
                        hit < precision.size() ? precision[hit] : 0.0;
                }
            }
        }
    }
}

/// Mean of the values that exist (are not -1), or -1; summed with Neumaier's compensation.
class MeanOfExisting {
  public:
    void add(double value) {
        if (value <= -1) {
            return;
        }
        ++count_;
        const double sum = sum_ + value;
        compensation_ += std::abs(sum_) >= std::abs(value) ? (sum_ - sum) + value : (value - sum) + sum_;
        sum_ = sum;
    }
    double value() const { return count_ == 0 ? -1.0 : (sum_ + compensation_) / static_cast<double>(count_); }

  private:
    std::size_t count_ = 0;
    double sum_ = 0;
    double compensation_ = 0;
};

/// What one of the twelve lines is about.
struct Stat {
    bool is_precision;
    std::optional<std::size_t> iou;  ///< none: mean over all thresholds
    std::size_t area;
    std::optional<std::size_t> limit;  ///< none: the limit of 100, wherever it is
};
constexpr std::array<Stat, stat_names.size()> stats = {{{true, {}, 0, {}},
                                                        {true, 0, 0, 2},
                                                        {true, 5, 0, 2},
                                                        {true, {}, 1, 2},
                                                        {true, {}, 2, 2},
                                                        {true, {}, 3, 2},
                                                        {false, {}, 0, 0},
                                                        {false, {}, 0, 1},
                                                        {false, {}, 0, 2},
                                                        {false, {}, 1, 2},
                                                        {false, {}, 2, 2},
                                                        {false, {}, 3, 2}}};
constexpr std::int32_t default_limit = 100;

double value_of(const Stat& stat, const Result& result) {
    std::size_t limit = 0;
    if (stat.limit) {
        limit = *stat.limit;
    } else {
        limit = static_cast<std::size_t>(std::ranges::find(result.max_detections, default_limit) -
                                         result.max_detections.begin());
        if (limit == M) {
            return -1;
        }
    }
    MeanOfExisting mean;
    for (std::size_t t = stat.iou.value_or(0); t < (stat.iou ? *stat.iou + 1 : T); ++t) {
        for (std::size_t k = 0; k < result.categories.size(); ++k) {
            if (!stat.is_precision) {
                mean.add(result.recall[result.recall_index(t, k, stat.area, limit)]);
                continue;
            }
            for (std::size_t r = 0; r < R; ++r) {
                mean.add(result.precision[result.precision_index(t, r, k, stat.area, limit)]);
            }
        }
    }
    return mean.value();
}

double average_precision(const Result& result, std::size_t k) {
    MeanOfExisting mean;
    for (std::size_t t = 0; t < T; ++t) {
        for (std::size_t r = 0; r < R; ++r) {
            mean.add(result.precision[result.precision_index(t, r, k, 0, M - 1)]);
        }
    }
    return mean.value();
}

}  // namespace

std::size_t Result::precision_index(std::size_t iou, std::size_t recall_level, std::size_t category_index,
                                    std::size_t area, std::size_t limit) const {
    return (((iou * R + recall_level) * categories.size() + category_index) * A + area) * M + limit;
}

std::size_t Result::recall_index(std::size_t iou, std::size_t category_index, std::size_t area,
                                 std::size_t limit) const {
    return ((iou * categories.size() + category_index) * A + area) * M + limit;
}

Result accumulate(const EvaluationShard& shard, unsigned threads) {
    const std::size_t category_count = shard.categories.size();
    Result result{.max_detections = shard.max_detections,
                  .categories = shard.categories,
                  .precision = std::vector<double>(T * R * category_count * A * M, -1.0),
                  .recall = std::vector<double>(T * category_count * A * M, -1.0),
                  .average_precision_by_category = std::vector<double>(category_count)};
    const auto ranked = rank_by_category(shard, threads);
    for_each_index(category_count, threads, [&](std::size_t k) {
        accumulate_category(k, ranked[k], std::span(shard.positive_count).subspan(k * A, A), result);
        result.average_precision_by_category[k] = average_precision(result, k);
    });
    std::ranges::transform(stats, result.stats.begin(), [&](const Stat& stat) { return value_of(stat, result); });
    return result;
}

std::string summary_text(const Result& result) {
    std::string text;
    for (std::size_t i = 0; i < stats.size(); ++i) {
        const Stat& stat = stats[i];
        std::array<char, 16> iou{};
        if (stat.iou) {
            std::snprintf(iou.data(), iou.size(), "%.2f", iou_thresholds[*stat.iou]);
        } else {
            std::snprintf(iou.data(), iou.size(), "%.2f:%.2f", iou_thresholds.front(), iou_thresholds.back());
        }
        std::array<char, 128> line{};
        std::snprintf(line.data(), line.size(), " %-18s %s @[ IoU=%-9s | area=%6s | maxDets=%3d ] = %.3f\n",
                      stat.is_precision ? "Average Precision" : "Average Recall", stat.is_precision ? "(AP)" : "(AR)",
                      iou.data(), area_ranges[stat.area].name,
                      stat.limit ? result.max_detections[*stat.limit] : default_limit, result.stats[i]);
        text += line.data();
    }
    return text;
}

}  // namespace lockstep::trainer::coco
