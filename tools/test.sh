# Builds and tests presets, and says at the end how many tests each ran.
# shellcheck shell=bash disable=SC2154

# test_presets PRESET...: goes on after a failure, so that one run shows everything that is wrong.
test_presets() {
    local name log summary='' passed=0 failed=0 broken=0 counts
    local arguments=(--output-on-failure --parallel "$(nproc)")
    $slow || arguments+=(--label-exclude slow)
    mkdir -p build/log
    for name in "$@"; do
        log=build/log/test-$name.log
        say test "preset $name"
        if ! build "$name"; then
            broken=$((broken + 1))
            summary+="[test] $name: does not build"$'\n'
            continue
        fi
        # Where the kernel spreads addresses wider than the sanitizers' shadow memory expects (Ubuntu 24.04), they don't start.
        local runner=()
        if [[ $name = *san ]] && setarch "$(uname -m)" -R true 2>/dev/null; then runner=(setarch "$(uname -m)" -R); fi
        "${runner[@]}" ctest --preset "$name" "${arguments[@]}" "${ctest_arguments[@]}" 2>&1 | tee "$log" || broken=$((broken + 1))
        # "98% tests passed, 1 tests failed out of 60"
        counts=$(sed -nE 's/.*tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\1 \2/p' "$log")
        counts=${counts:-0 0}
        summary+="[test] $name: ${counts##* } tests, ${counts%% *} failed"$'\n'
        failed=$((failed + ${counts%% *}))
        passed=$((passed + ${counts##* } - ${counts%% *}))
    done
    printf '\n%s%d passed, %d failed\n' "$summary" "$passed" "$failed"
    [ "$broken" -eq 0 ]
}
