#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "trainer/picture.h"

namespace lockstep::trainer {

/// Writes RUN/report.html from the run directory's own files: one self-contained page (inline SVG and images, no
/// network, light and dark, printable) with the result, curves, the metrics, the settings and validation images with
/// true and predicted boxes.
void write_report(const std::filesystem::path& run, std::span<const Picture> pictures,
                  std::span<const std::string> classes);

}  // namespace lockstep::trainer
