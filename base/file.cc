#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view action, const fs::path& path, int error) {
    throw Error(str("can't ", action, " ", path.string(), ": ", std::generic_category().message(error)));
}

class FileDescriptor {
  public:
    /// Invalid, with errno set, where the file can't be opened.
    FileDescriptor(const fs::path& path, int flags, mode_t mode = 0)
        : fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {}
    ~FileDescriptor() { close(); }
    FileDescriptor(const FileDescriptor&) = delete;
    FileDescriptor& operator=(const FileDescriptor&) = delete;

    bool valid() const { return fd_ >= 0; }
    int get() const { return fd_; }
    /// 0, or -1 with errno: network file systems report a full disk here.
    int close() { return valid() ? ::close(std::exchange(fd_, -1)) : 0; }

  private:
    int fd_;
};

template <typename Container>
Container read_all(const fs::path& path) {
    const FileDescriptor file(path, O_RDONLY);
    struct stat status {};
    if (!file.valid() || fstat(file.get(), &status) != 0) {
        fail("read", path, errno);
    }
    Container content;
    std::size_t used = 0;
    // One byte more than the size, so that the end is seen; files of /proc say size 0 and go on.
    for (std::size_t wanted = static_cast<std::size_t>(status.st_size) + 1;; wanted = 2 * wanted + 4096) {
        content.resize(wanted);
        while (used < content.size()) {
            const ssize_t got = read(file.get(), content.data() + used, content.size() - used);
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                fail("read", path, errno);
            }
            if (got == 0) {
                content.resize(used);
                return content;
            }
            used += static_cast<std::size_t>(got);
        }
    }
}

fs::path parent_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

constexpr std::string_view partial_mark = ".partial-";

/// `path` + ".partial-PID", or with a further number where a killed process of the same PID left that behind.
fs::path partial_name(const fs::path& path, int attempt) {
    fs::path name = path;
    name += str(partial_mark, getpid());
    if (attempt > 0) {
        name += str("-", attempt);
    }
    return name;
}
constexpr int partial_name_attempts = 1000;

void write_and_sync(FileDescriptor& file, const fs::path& path, std::string_view content) {
    while (!content.empty()) {
        const ssize_t put = write(file.get(), content.data(), content.size());
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            fail("write", path, errno);
        }
        content.remove_prefix(static_cast<std::size_t>(put));
    }
    if (fsync(file.get()) != 0 || file.close() != 0) {
        fail("write", path, errno);
    }
}

void rename_and_sync(const fs::path& from, const fs::path& to) {
    if (rename(from.c_str(), to.c_str()) != 0) {
        fail(str("rename ", from.string(), " to"), to, errno);
    }
    sync_to_disk(parent_of(to));
}

}  // namespace

std::string read_text(const fs::path& path) {
    return read_all<std::string>(path);
}
std::vector<std::uint8_t> read_bytes(const fs::path& path) {
    return read_all<std::vector<std::uint8_t>>(path);
}

void write_whole(const fs::path& path, std::string_view content) {
    for (int attempt = 0; attempt < partial_name_attempts; ++attempt) {
        const fs::path partial = partial_name(path, attempt);
        FileDescriptor file(partial, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (!file.valid() && errno == EEXIST) {
            continue;
        }
        if (!file.valid()) {
            fail("create", partial, errno);
        }
        try {
            write_and_sync(file, partial, content);
            rename_and_sync(partial, path);
        } catch (...) {
            unlink(partial.c_str());
            throw;
        }
        return;
    }
    fail("create", partial_name(path, 0), EEXIST);
}

DirectoryAside::DirectoryAside(const fs::path& path)
    : target_(path.has_filename() ? path : path.parent_path()) {  // without a slash at the end
    if (fs::exists(fs::symlink_status(target_))) {
        throw Error(str(target_.string(), " exists already: remove it or choose another name"));
    }
    for (int attempt = 0; attempt < partial_name_attempts; ++attempt) {
        aside_ = partial_name(target_, attempt);
        if (mkdir(aside_.c_str(), 0777) == 0) {
            return;
        }
        if (errno != EEXIST) {
            fail("create", aside_, errno);
        }
    }
    fail("create", partial_name(target_, 0), EEXIST);
}

DirectoryAside::~DirectoryAside() {
    if (!is_published_) {
        std::error_code ignored;
        fs::remove_all(aside_, ignored);
    }
}

void remove_leftovers_aside(const fs::path& folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename().string().find(partial_mark) != std::string::npos) {
            fs::remove_all(entry.path());
        }
    }
}

void DirectoryAside::publish() {
    publish_directory(aside_, target_);
    is_published_ = true;
}

void publish_directory(const fs::path& aside, const fs::path& path) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(aside)) {
        sync_to_disk(entry.path());
    }
    sync_to_disk(aside);
    rename_and_sync(aside, path);
}

void write_directory_whole(const fs::path& path, const std::function<void(const fs::path&)>& fill) {
    DirectoryAside directory(path);
    fill(directory.path());
    directory.publish();
}

void sync_to_disk(const fs::path& path) {
    const FileDescriptor file(path, O_RDONLY);
    if (!file.valid() || fsync(file.get()) != 0) {
        fail("sync", path, errno);
    }
}

void require_free_space(const fs::path& path, std::uint64_t bytes, std::string_view what) {
    std::error_code error;
    fs::path existing = fs::absolute(path, error);
    while (!fs::exists(existing, error) && existing.has_relative_path()) {
        existing = existing.parent_path();
    }
    const std::uint64_t available = fs::space(existing, error).available;
    if (error) {
        fail("tell the free space at", path, error.value());
    }
    if (available < bytes) {
        throw Error(str(what, " needs ", human_bytes(static_cast<double>(bytes)), " at ", path.string(), ", but only ",
                        human_bytes(static_cast<double>(available)),
                        " are free there: free some or choose another disk"));
    }
}

MappedFile::MappedFile(const fs::path& path) {
    const FileDescriptor file(path, O_RDONLY);
    struct stat status {};
    if (!file.valid() || fstat(file.get(), &status) != 0) {
        fail("map", path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        throw Error(str("can't map ", path.string(), ": not a regular file"));
    }
    if (status.st_size == 0) {
        return;  // mmap refuses a length of zero
    }
    void* mapped = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED) {
        fail("map", path, errno);
    }
    data_ = static_cast<const std::uint8_t*>(mapped);
    size_ = static_cast<std::size_t>(status.st_size);
}

MappedFile::~MappedFile() {
    if (data_) {
        munmap(const_cast<std::uint8_t*>(data_), size_);
    }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

void MappedFile::will_need(std::size_t offset, std::size_t size) const {
    if (offset >= size_) {
        return;
    }
    const std::size_t end = offset + std::min(size, size_ - offset);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t begin = offset / page * page;
    madvise(const_cast<std::uint8_t*>(data_ + begin), end - begin, MADV_WILLNEED);
}

void MappedFile::let_go() const {
    if (data_) {
        madvise(const_cast<std::uint8_t*>(data_), size_, MADV_DONTNEED);
    }
}

}  // namespace lockstep::base
