#include "app/recipe_for_data.h"

namespace lockstep::app {

trainer::Recipe recipe_for_data(const std::filesystem::path& file, const std::vector<std::string>& settings,
                                const std::filesystem::path& dataset, sharding::Task task) {
    std::vector<trainer::Override> overrides;
    for (const std::string& setting : settings) {
        overrides.push_back(trainer::parse_override(setting));
    }
    if (!file.empty()) {
        return trainer::load_recipe(file, overrides);
    }
    const std::string toml = task == sharding::Task::detection
                                 ? "model = \"yolov10n\"\n"
                                 : "model = \"resnet18\"\nimage_size = 224\n[augmentation]\nmosaic = 0\n";
    overrides.insert(overrides.begin(), {"data.train", dataset.string()});
    return trainer::parse_recipe(toml, "the defaults", overrides);
}

}  // namespace lockstep::app
