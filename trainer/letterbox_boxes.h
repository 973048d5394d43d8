#pragma once

#include "sharding/augmentation.h"
#include "trainer/models/decode.h"
#include "trainer/picture.h"

namespace lockstep::trainer {

/// From the network's input back to the source image's pixels, cut at its border.
PictureBox to_source(const Detection& detection, const sharding::Letterbox& letterbox);

}  // namespace lockstep::trainer
