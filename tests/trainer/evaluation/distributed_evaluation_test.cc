// The evaluation over real ranks: bit for bit that of one process, and refused everywhere where images are missing or
// repeated.
#include "trainer/evaluation/distributed_evaluation.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/text.h"
#include "tests/base/scratch.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/evaluation/made_up_detections.h"

namespace lockstep::trainer::coco {
namespace {

using base::contains;
using base::Error;
using base::message_of;
using base::str;
using tests::bits_of;
using tests::Cut;
using tests::MadeUpDetections;
using tests::make_up_detections;
using tests::numbers_of;

constexpr std::size_t images = 150;

class DistributedEvaluationTest : public testing::Test {
  protected:
    std::unique_ptr<comm::Communicator> communicator_ = tests::make_test_communicator();
    std::size_t ranks_ = static_cast<std::size_t>(communicator_->size());
    std::size_t rank_ = static_cast<std::size_t>(comm::index_of(communicator_->rank()));
    MadeUpDetections all_ = make_up_detections(images, 5);
    Cut every_nth_ = cuts_into(ranks_, all_)[1].cut;
    MadeUpDetections mine_ = part_of(all_, every_nth_, rank_);

    /// Takes the first of this rank's images away, with its boxes and detections.
    void lose_an_image() {
        Cut cut(mine_.image_ids.size(), 0);
        cut.at(0) = 1;
        mine_ = part_of(mine_, cut, 0);
    }

    /// Evaluates the first image of the data set here too; rank 0 has it.
    void repeat_an_image() {
        Cut cut(images, 1);
        cut.at(0) = 0;
        const MadeUpDetections first = part_of(all_, cut, 0);
        mine_.image_ids.insert(mine_.image_ids.end(), first.image_ids.begin(), first.image_ids.end());
        mine_.boxes.insert(mine_.boxes.end(), first.boxes.begin(), first.boxes.end());
        mine_.detections.insert(mine_.detections.end(), first.detections.begin(), first.detections.end());
    }

    std::string message() {
        return message_of<Error>([&] { accumulate_over_ranks(mine_.match(), images, *communicator_); });
    }
};

TEST_F(DistributedEvaluationTest, AnyCutOverRanksGivesTheBitsOfOneProcess) {
    const Result whole = accumulate(all_.match());
    ASSERT_GT(whole.stats[0], 0.1);
    ASSERT_LT(whole.stats[0], 0.9);
    const auto expected = bits_of(numbers_of(whole));
    for (const auto& [name, cut] : cuts_into(ranks_, all_)) {
        const Result result =
            accumulate_over_ranks(part_of(all_, cut, rank_).match(), images, *communicator_, 1 + rank_);
        EXPECT_TRUE(bits_of(numbers_of(result)) == expected)
            << name << ": AP " << result.stats[0] << " instead of " << whole.stats[0];
    }
}

TEST_F(DistributedEvaluationTest, AMissingImageIsRefusedOnEveryRank) {
    if (rank_ + 1 == ranks_) {
        lose_an_image();
    }
    EXPECT_TRUE(contains(message(), str("evaluated ", images - 1, " images, but the data set has ", images)));
}

TEST_F(DistributedEvaluationTest, ARepeatedImageIsRefusedOnEveryRank) {
    if (rank_ + 1 == ranks_) {
        repeat_an_image();
    }
    EXPECT_TRUE(contains(message(), str("image ", all_.image_ids[0], " is evaluated more than once")));
}

/// The number of images is right, but not the images.
TEST_F(DistributedEvaluationTest, AMissingAndARepeatedImageDontMakeUpForEachOther) {
    if (rank_ + 1 == ranks_) {
        lose_an_image();
        repeat_an_image();
    }
    EXPECT_TRUE(contains(message(), str("image ", all_.image_ids[0], " is evaluated more than once")));
}

TEST_F(DistributedEvaluationTest, RanksWithOtherCategoriesAreRefusedOnEveryRank) {
    if (rank_ == 0) {
        mine_.categories.push_back(1000);
    }
    EXPECT_TRUE(contains(message(), "differ in categories"));
}

TEST_F(DistributedEvaluationTest, ADataSetWithoutImagesIsMinusOne) {
    const Result result = accumulate_over_ranks(MadeUpDetections{}.match(), 0, *communicator_);
    EXPECT_EQ(result.stats[0], -1);
}

}  // namespace
}  // namespace lockstep::trainer::coco
