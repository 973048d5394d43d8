// Linked in the worst order, OpenCV first and LibTorch only through another library, and still LibTorch's BLAS has to
// win.

#include <ATen/core/Tensor.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>

#include <opencv2/core.hpp>

#include "base/error.h"

int main() {
    const at::Tensor product = at::mm(at::eye(3), at::eye(3));
    const cv::Mat matrix(3, 3, CV_32F, product.data_ptr());
    LOCKSTEP_CHECK(cv::trace(matrix)[0] == 3);
}
