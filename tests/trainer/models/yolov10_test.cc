#include "trainer/models/yolov10.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/text.h"
#include "trainer/models/model_state.h"

namespace lockstep::trainer {
namespace {

using enum Yolov10Variant;
using base::str;

struct Counts {
    Yolov10Variant variant;
    std::int64_t classes;
    std::int64_t training;
};

// Counted by an independent program; those of n, s, m at 80 classes and of n at 20 also stand in public training logs.
constexpr Counts training_counts[] = {
    {n, 1, 2'707'430},   {n, 2, 2'707'820},   {n, 10, 2'710'940},  {n, 20, 2'714'840},  {n, 80, 2'775'520},
    {s, 1, 8'067'126},   {s, 10, 8'074'092},  {s, 20, 8'081'832},  {s, 80, 8'128'272},  {m, 1, 16'485'286},
    {m, 10, 16'495'708}, {m, 20, 16'507'288}, {m, 80, 16'576'768}, {b, 1, 20'452'566},  {b, 10, 20'466'444},
    {b, 20, 20'481'864}, {b, 80, 20'574'384}, {l, 1, 25'766'870},  {l, 10, 25'780'748}, {l, 20, 25'796'168},
    {l, 80, 25'888'688}, {x, 1, 31'656'806},  {x, 10, 31'674'140}, {x, 20, 31'693'400}, {x, 80, 31'808'960},
};

TEST(Yolov10, HasThePublishedNumberOfParameters) {
    for (const Counts& expected : training_counts) {
        const Yolov10 model(expected.variant, expected.classes);
        EXPECT_EQ(parameter_count(model), expected.training)
            << "variant " << static_cast<int>(expected.variant) << ", " << expected.classes << " classes";
    }
}

}  // namespace
}  // namespace lockstep::trainer
