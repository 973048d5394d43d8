#include "comm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

[[noreturn]] void fail(std::string_view what, std::string_view remedy) {
    const int code = errno;
    throw base::Error(base::str(base::process_name(), ": ", what, ": ", std::strerror(code), ". ", remedy));
}

std::shared_ptr<const int> owned(int descriptor) {
    return {new int(descriptor), [](const int* held) {
                close(*held);
                delete held;
            }};
}

std::uint64_t inode_of(int descriptor) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0) {
        fail("a shared memory segment can't be examined", "");
    }
    return status.st_ino;
}

std::string size_text(std::size_t bytes) {
    return base::human_bytes(static_cast<double>(bytes));
}

}  // namespace

SharedSegment::SharedSegment(std::shared_ptr<const int> descriptor, std::size_t bytes)
    : descriptor_(std::move(descriptor)), bytes_(bytes) {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor_, 0);
    if (address == MAP_FAILED) {
        fail(base::str("shared memory of ", size_text(bytes), " can't be mapped"),
             "Raise the limit on address space (ulimit -v), or run fewer ranks on this node.");
    }
    mapping_ = {static_cast<std::byte*>(address), [bytes](std::byte* mapped) { munmap(mapped, bytes); }};
    // A hint: fewer page faults and misses where the system has huge pages for shared memory.
    static_cast<void>(madvise(address, bytes, MADV_HUGEPAGE));
}

SharedSegment SharedSegment::create(std::size_t bytes) {
    LOCKSTEP_CHECK_NE(bytes, std::size_t{0});
    const int descriptor = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0) {
        fail("shared memory can't be created", "Raise the limit on open files (ulimit -n).");
    }
    auto held = owned(descriptor);
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
        fail(base::str("shared memory of ", size_text(bytes), " can't be created"),
             "Run fewer ranks on this node, or a smaller model.");
    }
    // Nobody can take the memory away under the others' feet.
    if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        fail("shared memory can't be sealed", "");
    }
    return {std::move(held), bytes};
}

SharedSegment SharedSegment::open(const Handle& handle) {
    const std::string path = base::str("/proc/", handle.process, "/fd/", handle.descriptor);
    constexpr std::string_view remedy =
        "Ranks of one node share memory: they must run as one user and see each other's processes (no PID namespace of "
        "their own). topology = \"flat\" does without.";
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
        fail(base::str("the shared memory of process ", handle.process, " can't be opened"), remedy);
    }
    auto held = owned(descriptor);
    if (inode_of(descriptor) != handle.inode) {
        throw base::Error(
            base::str(base::process_name(), ": ", path, " is not the segment that was announced. ", remedy));
    }
    return {std::move(held), handle.bytes};
}

SharedSegment::Handle SharedSegment::handle() const {
    return {getpid(), *descriptor_, inode_of(*descriptor_), bytes_};
}

void require_memory_for(std::size_t bytes) {
    const std::uint64_t available = base::available_memory_bytes();
    if (available != 0 && bytes > available) {
        throw base::Error(base::str(base::process_name(), ": there is no memory for ", size_text(bytes),
                                    " of a shared segment: ", size_text(available),
                                    " are left. Run fewer ranks on this node, or a smaller model."));
    }
}

void SharedSegment::reserve(std::size_t begin, std::size_t bytes) const {
    LOCKSTEP_CHECK(begin + bytes <= bytes_, begin, " + ", bytes, " of ", bytes_);
    if (bytes == 0) {
        return;
    }
    require_memory_for(bytes);
    int code = 0;
    do {
        code = fallocate(*descriptor_, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code != 0) {
        errno = code;
        fail(base::str("there is no memory for ", size_text(bytes), " of a shared segment"),
             "Run fewer ranks on this node, or a smaller model.");
    }
}

}  // namespace lockstep::comm
