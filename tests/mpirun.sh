#!/usr/bin/env bash
# mpirun.sh RANKS TIMEOUT PROGRAM [ARGS...]: a test under real mpirun, on any machine and as any user; ends what it started.
set -u
ranks=$1 limit=$2
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1
# Shared memory and TCP, without a search for network cards: starts sooner, and warns of none.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
# Open MPI unloads its plugins before leaks are reported, so theirs have no name that a suppression could match.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
exec timeout --signal=TERM --kill-after=10 "$limit" mpirun --oversubscribe --bind-to none -np "$ranks" "$@"
