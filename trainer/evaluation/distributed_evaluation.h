#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "trainer/evaluation/coco_evaluation.h"

namespace lockstep::trainer::coco {

/// Collective. Every rank passes the shard of its own images (no images is fine) and the number of images of the whole
/// data set, and gets the scores of all of them, bitwise the same on all ranks and for every number of ranks and cut of
/// the images. Throws base::Error on every rank where an image was evaluated twice or not at all: the boxes of an image
/// that nobody evaluated would not count as missed, so that the scores would rise. Moves 40 bytes per detection.
Result accumulate_over_ranks(const EvaluationShard& mine, std::uint64_t image_count, comm::Communicator& communicator,
                             unsigned threads = 0);

}  // namespace lockstep::trainer::coco
