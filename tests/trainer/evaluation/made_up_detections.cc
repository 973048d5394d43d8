#include "tests/trainer/evaluation/made_up_detections.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "base/random.h"
#include "base/text.h"

namespace lockstep::tests {

using base::Random;

namespace {

coco::Box box_like(Random& random) {
    const double width = std::exp(random.uniform(1.5, 5.5));
    const double height = width * random.uniform(0.5, 2.0);
    return {random.uniform(0, 400), random.uniform(0, 400), width, height};
}

coco::Box near(const coco::Box& box, Random& random) {
    const auto off = [&](double side) { return 0.07 * side * random.normal(); };
    return {box.x + off(box.width), box.y + off(box.height), std::abs(box.width + off(box.width)),
            std::abs(box.height + off(box.height))};
}

/// Two decimals, so that many are equal, within an image and between images.
double score(double low, double high, Random& random) {
    return std::round(100 * random.uniform(low, high)) / 100;
}

}  // namespace

coco::EvaluationShard MadeUpDetections::match(unsigned threads) const {
    return coco::match_images(image_ids, categories, boxes, detections, {.honor_ignore = true, .threads = threads});
}

MadeUpDetections make_up_detections(std::size_t images, std::size_t categories) {
    MadeUpDetections all;
    for (std::size_t k = 0; k < categories; ++k) {
        all.categories.push_back(static_cast<std::int64_t>(3 * k + 1));
    }
    for (std::size_t i = 0; i < images; ++i) {
        Random random(21, base::RandomPurpose::test, 0, i);
        const auto id = static_cast<std::int64_t>(i * 7919 % 104729);
        all.image_ids.push_back(id);
        if (i % 10 == 9) {
            continue;
        }
        const auto category = [&] { return all.categories[random.below(categories)]; };
        for (std::uint64_t b = random.below(7); b > 0; --b) {
            const coco::GroundTruthBox truth{.image_id = id,
                                             .category = category(),
                                             .box = box_like(random),
                                             .area = 0,
                                             .crowd = random.coin(0.05),
                                             .ignore = random.coin(0.1),
                                             .id = static_cast<std::int64_t>(all.boxes.size()) + 1};
            all.boxes.push_back(truth);
            all.boxes.back().area = 0.8 * truth.box.width * truth.box.height;
            for (std::uint64_t d = random.below(3); d > 0; --d) {
                all.detections.push_back({id, truth.category, near(truth.box, random), score(0.3, 1, random)});
            }
        }
        for (std::uint64_t d = random.below(5); d > 0; --d) {
            all.detections.push_back({id, category(), box_like(random), score(0, 0.8, random)});
        }
    }
    return all;
}

MadeUpDetections part_of(const MadeUpDetections& all, const Cut& cut, std::size_t part) {
    std::unordered_map<std::int64_t, std::size_t> part_of_image;
    for (std::size_t i = 0; i < all.image_ids.size(); ++i) {
        part_of_image[all.image_ids[i]] = cut.at(i);
    }
    const auto is_in_part = [&](std::int64_t image_id) { return part_of_image.at(image_id) == part; };
    MadeUpDetections some{.categories = all.categories};
    std::ranges::copy_if(all.image_ids, std::back_inserter(some.image_ids), is_in_part);
    std::ranges::copy_if(all.boxes, std::back_inserter(some.boxes), is_in_part, &coco::GroundTruthBox::image_id);
    std::ranges::copy_if(all.detections, std::back_inserter(some.detections), is_in_part, &coco::Detection::image_id);
    return some;
}

std::vector<NamedCut> cuts_into(std::size_t parts, const MadeUpDetections& all) {
    const std::size_t images = all.image_ids.size();
    Random random(22, base::RandomPurpose::test, 0, parts);
    const auto cut = [&](const char* name, auto&& part_of_position) {
        NamedCut made{name, Cut(images)};
        for (std::size_t i = 0; i < images; ++i) {
            made.cut[i] = part_of_position(i);
        }
        return made;
    };
    return {cut("neighbours", [&](std::size_t i) { return i * parts / images; }),
            cut("every n-th", [&](std::size_t i) { return i % parts; }),
            cut("at random", [&](std::size_t) { return random.below(parts); }),
            cut("all in the first", [&](std::size_t) { return std::size_t{0}; }),
            cut("all in the last", [&](std::size_t) { return parts - 1; })};
}

std::vector<double> numbers_of(const coco::Result& result) {
    std::vector<double> numbers = result.precision;
    numbers.insert(numbers.end(), result.recall.begin(), result.recall.end());
    numbers.insert(numbers.end(), result.average_precision_by_category.begin(),
                   result.average_precision_by_category.end());
    numbers.insert(numbers.end(), result.stats.begin(), result.stats.end());
    return numbers;
}

std::vector<std::uint64_t> bits_of(std::span<const double> numbers) {
    std::vector<std::uint64_t> bits;
    bits.reserve(numbers.size());
    for (const double number : numbers) {
        if (std::isnan(number)) {
            throw std::logic_error(base::str("number ", bits.size(), " of ", numbers.size(), " is NaN"));
        }
        bits.push_back(std::bit_cast<std::uint64_t>(number));
    }
    return bits;
}

}  // namespace lockstep::tests
