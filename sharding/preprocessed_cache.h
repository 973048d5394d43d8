#pragma once

#include <filesystem>

#include "sharding/dataset.h"
#include "sharding/sample_reader.h"

namespace lockstep::sharding {

/// The samples of a data set as SampleReader would give them, decoded once and kept on the disk: a raw data set in
/// `folder`, named after the content and the options that its pixels depend on, so that several may lie there. Made
/// where it is missing, on `threads` threads; a killed process's half is finished by the next one. While another
/// process makes it, this one waits. Give it to SampleReaderOptions::preprocessed.
///
/// Throws base::Error: a sample that can't be read (named), no space, another set under that name.
Dataset open_preprocessed_cache(const Dataset& source, const std::filesystem::path& folder,
                                const SampleReaderOptions& options, unsigned threads);

}  // namespace lockstep::sharding
