#include "trainer/models/model_names.h"

namespace lockstep::trainer {

const std::vector<std::string>& detector_names() {
    static const std::vector<std::string> names = {"yolov10n", "yolov10s", "yolov10m",
                                                   "yolov10b", "yolov10l", "yolov10x"};
    return names;
}

const std::vector<std::string>& classifier_names() {
    static const std::vector<std::string> names = {"resnet18", "resnet34", "resnet50", "resnet101"};
    return names;
}

}  // namespace lockstep::trainer
