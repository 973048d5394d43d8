#pragma once

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trainer/losses/complete_iou.h"
#include "trainer/models/anchor_points.h"

namespace lockstep::trainer {

/// An anchor whose centre is this near to the border of a box, in pixels, counts as outside.
constexpr double box_border = 1e-9;

/// Finds the anchors whose centres lie strictly inside a box. Centres come in rows of equal y, most of which are
/// skipped at once.
template <typename T>
class AnchorsInBox {
  public:
    explicit AnchorsInBox(const AnchorPoints& anchors) : centres_((anchors.points * anchors.strides).contiguous()) {
        const auto centre = centres_.template accessor<T, 2>();
        for (std::int64_t anchor = 0; anchor < centre.size(0); ++anchor) {
            if (rows_.empty() || rows_.back().y != centre[anchor][1]) {
                rows_.push_back({.y = centre[anchor][1], .begin = anchor, .end = anchor});
            }
            ++rows_.back().end;
        }
    }

    /// Calls visit(anchor) for each, in ascending order.
    template <typename Visit>
    void for_each(const Box<T>& box, Visit visit) const {
        const T* centre = centres_.template const_data_ptr<T>();
        for (const Row& row : rows_) {
            if (std::min(row.y - box.y1, box.y2 - row.y) > T(box_border)) {
                for (std::int64_t anchor = row.begin; anchor < row.end; ++anchor) {
                    const T x = centre[2 * anchor];
                    if (std::min(x - box.x1, box.x2 - x) > T(box_border)) {
                        visit(anchor);
                    }
                }
            }
        }
    }

  private:
    struct Row {
        T y;
        std::int64_t begin, end;
    };
    at::Tensor centres_;  // A x 2, pixels
    std::vector<Row> rows_;
};

}  // namespace lockstep::trainer
