# Shared by `run` and the scripts beside this one; sourced with the checkout as the working directory.
# shellcheck shell=bash disable=SC2154

say() { printf '[%s] %s\n' "$1" "$2"; }

fail() {
    printf '[%s] %s\n' "$1" "$2" >&2
    exit 1
}

usage_error() {
    printf '%s; ./run help lists what there is\n' "$1" >&2
    exit 2
}

# logged STEP LOG COMMAND...: what the command prints goes to the file build/log/LOG, and to the reader only if it fails.
logged() {
    local step=$1 log=build/log/$2
    shift 2
    mkdir -p build/log
    "$@" >"$log" 2>&1 && return
    tail -n 30 "$log" >&2
    printf '[%s] failed: %s\n[%s] all it said: %s\n' "$step" "$*" "$step" "$log" >&2
    return 1
}

# A file that includes LibTorch takes up to 2 GB to compile.
build_jobs() {
    local cores memory_gb
    cores=$(nproc)
    memory_gb=$(awk '/MemAvailable/ { print int($2 / 2097152) + 1 }' /proc/meminfo)
    echo $((memory_gb < cores ? memory_gb : cores))
}

# build PRESET: leaves the programs in build/PRESET.
build() {
    local arguments=(--preset "$1")
    if $cuda; then arguments+=(-DLOCKSTEP_CUDA=ON); fi
    say build "configuring build/$1"
    logged build "configure-$1.log" cmake "${arguments[@]}" || return 1
    NINJA_STATUS="[build] $1 %f/%t " cmake --build "build/$1" --parallel "$(build_jobs)"
}
