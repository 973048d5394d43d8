#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

namespace lockstep::comm {

/// Throws base::Error with the call's name and MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);
std::string mpi_error_text(int code);

/// Between MPI_Init and MPI_Finalize.
bool mpi_is_running();
/// Throws base::Error unless MPI may be called by several threads at once.
void require_thread_multiple();

}  // namespace lockstep::comm
