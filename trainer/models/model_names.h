#pragma once

#include <string>
#include <vector>

namespace lockstep::trainer {

/// "yolov10n", "yolov10s", ... Apart from what makes them, for who needs no LibTorch.
const std::vector<std::string>& detector_names();
/// "resnet18", "resnet34", ...
const std::vector<std::string>& classifier_names();

}  // namespace lockstep::trainer
