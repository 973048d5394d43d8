#!/usr/bin/env bash
# fuzz.sh SECONDS TARGET...: README.md
set -eu
cd "$(dirname "$0")/../../.."
seconds=$1
shift
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
cmake --preset fuzz
cmake --build build/fuzz --target "${@/#/fuzz_}"
for target in "$@"; do
    program=build/fuzz/tests/sharding/fuzz/fuzz_$target corpus=build/fuzz/tests/sharding/fuzz/corpus/$target work=build/fuzz/found/$target
    # libhdf5 keeps memory for later, which would be taken for a leak after most inputs, and searched for.
    options=(-timeout=20 -rss_limit_mb=3000 -max_len=4096 "-artifact_prefix=$work/" -detect_leaks=0)
    mkdir -p "$work/new"
    "$program" "${options[@]}" -max_total_time="$seconds" -print_final_stats=1 "$work/new" "$corpus" 2>&1 |
        grep -av ' warning \| info ' | tee "$work/log" | grep -a 'DONE\|stat::\|ERROR\|SUMMARY\|Test unit'
    [ "${PIPESTATUS[0]}" = 0 ] || exit 1
    rm -rf "$work/merged" && mkdir "$work/merged"
    "$program" "${options[@]}" -merge=1 "$work/merged" "$corpus" "$work/new" 2>/dev/null
    rm -rf "$corpus" && cp -r "$work/merged" "$corpus"
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 \
        -cJf "tests/sharding/fuzz/corpus/$target.tar.xz" -C "$corpus" .
done
