#pragma once

/// What the program's exit code tells a script or a batch system.
namespace lockstep::base::exit_code {

inline constexpr int success = 0;
inline constexpr int failure = 1;
inline constexpr int usage = 2;
/// Stopped at a checkpoint on request (EX_TEMPFAIL of sysexits.h): the same command continues the run.
inline constexpr int run_again = 75;

}  // namespace lockstep::base::exit_code
