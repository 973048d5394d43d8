#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::bench {

/// What a sweep's launches share, as a JSON object: commit, build, libraries, machine and an allow-list of environment
/// variables. `program` is what is launched; `places` by their role: the type of the file system that each lies on is
/// recorded. Nothing in it names the machine or a path on it.
std::string provenance_json(const std::string& program, const std::map<std::string, std::filesystem::path>& places);

/// Of a data set's index file, which has a checksum of every sample; "" where there is none.
std::string data_hash(const std::filesystem::path& directory);

/// Texts as they may be published: paths relative to the sweep's directory, else to the working directory, else to ~;
/// the program by its file name; HOST for the name of this machine.
class PublicText {
  public:
    PublicText(const std::string& program, const std::filesystem::path& sweep);
    std::string of(std::string text) const;

  private:
    std::string program_, sweep_, here_, home_, host_;
};

}  // namespace lockstep::bench
