#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "base/text.h"

namespace lockstep::base {

/// What a user or the world can cause. The message says what happened, where (file, record, rank), and what to do.
/// The program prints it and exits 1.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// The command line or the recipe is wrong. The program prints it and exits 2.
class UsageError : public Error {
  public:
    using Error::Error;
};

/// A broken invariant of our own: thrown only by the LOCKSTEP_CHECK macros. Exits 1, and asks for a report.
class InternalError : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

/// "rank 1 of 4 on node7" under a launcher (read from OMPI_*, PMIX_* or SLURM_* variables), "pid 123 on laptop" without
/// one.
std::string process_name();

/// Whether mpirun or srun started this process as one of its ranks. A plain program in a batch script is not a rank.
bool under_launcher();

namespace detail {
/// A path as it is below the root of the sources, so that messages show no directory of the machine that compiled.
constexpr std::string_view below_root(std::string_view file) {
    constexpr std::string_view own_path = __FILE__;
    constexpr std::string_view root = own_path.substr(0, own_path.size() - std::string_view("base/error.h").size());
    return file.starts_with(root) ? file.substr(root.size()) : file;
}

[[noreturn]] void check_failed(std::string_view condition, std::string_view operands, std::string_view file, int line);
}  // namespace detail

}  // namespace lockstep::base

/// Our own mistakes only; never for what a user, a file or a peer can cause. Always on, also in release builds.
/// Further arguments are joined into the message: LOCKSTEP_CHECK(offset <= size, "bucket ", name).
#define LOCKSTEP_CHECK(condition, ...)                                                                        \
    do {                                                                                                      \
        if (!(condition)) [[unlikely]] {                                                                      \
            ::lockstep::base::detail::check_failed(#condition, ::lockstep::base::str(__VA_ARGS__),            \
                                                   ::lockstep::base::detail::below_root(__FILE__), __LINE__); \
        }                                                                                                     \
    } while (false)

#define LOCKSTEP_CHECK_OP(a, op, b, ...)                                                 \
    do {                                                                                 \
        const auto& lockstep_check_a = (a);                                              \
        const auto& lockstep_check_b = (b);                                              \
        if (!(lockstep_check_a op lockstep_check_b)) [[unlikely]] {                      \
            ::lockstep::base::detail::check_failed(                                      \
                #a " " #op " " #b,                                                       \
                ::lockstep::base::str(lockstep_check_a, " against ",                     \
                                      lockstep_check_b __VA_OPT__(, " ", ) __VA_ARGS__), \
                ::lockstep::base::detail::below_root(__FILE__), __LINE__);               \
        }                                                                                \
    } while (false)

#define LOCKSTEP_CHECK_EQ(a, b, ...) LOCKSTEP_CHECK_OP(a, ==, b __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_CHECK_NE(a, b, ...) LOCKSTEP_CHECK_OP(a, !=, b __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_CHECK_LT(a, b, ...) LOCKSTEP_CHECK_OP(a, <, b __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_CHECK_LE(a, b, ...) LOCKSTEP_CHECK_OP(a, <=, b __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_CHECK_GE(a, b, ...) LOCKSTEP_CHECK_OP(a, >=, b __VA_OPT__(, ) __VA_ARGS__)
