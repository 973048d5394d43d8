# The main job on real photos, from the network to a trained detector.
# shellcheck shell=bash disable=SC2154

source tools/data.sh

demo() {
    local run=runs/trees number=1 started
    fetch_trees
    import_trees $training_photo train
    import_trees $validation_photo validation

    while [ -e "$run" ]; do
        number=$((number + 1))
        run=runs/trees-$number
    done
    say train "2 ranks, into $run"
    started=$SECONDS
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe --bind-to none -np 2 build/release/lockstep train recipes/trees.toml --out "$run"
    .venv/bin/python tools/closing_table.py "$run" $((SECONDS - started))
}
