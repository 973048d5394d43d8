# The real data that the recipes and their tests train on.
# shellcheck shell=bash disable=SC2154

# Two photos of different places: one to train on, one to be measured on.
training_photo=2019_YELL_2_528000_4978000_image_crop2
validation_photo=2019_YELL_2_541000_4977000_image_crop

# fetch_trees: both photos and their boxes, into data/trees/photos.
fetch_trees() {
    local photos=data/trees/photos wheel
    if [ -e "$photos/complete" ]; then return; fi
    say data "fetching $trees_wheel"
    logged data fetch-trees.log .venv/bin/python -m pip download --no-deps --dest data/trees "$trees_wheel" ||
        fail data "could not fetch $trees_wheel; to see why: .venv/bin/python -m pip download --no-deps $trees_wheel"
    wheel=$(echo data/trees/deepforest-*.whl)
    sha256sum --status --check <<<"$trees_sha256  $wheel" ||
        fail data "$wheel is not the file that versions.sh names; remove it and run this again"
    unzip -joq "$wheel" "deepforest/data/$training_photo.*" "deepforest/data/$validation_photo.*" -d "$photos"
    rm "$wheel"
    touch "$photos/complete"
}

# The tool that drew the boxes wrote edges, not numbers of pixels: that is how DeepForest itself reads them.
trees_import=(--tile 256 --overlap 128 --zero-based --drop-empty-tiles)

# import_trees PHOTO NAME: cuts a photo into overlapping tiles of 256 pixels; again where it was cut in another way.
import_trees() {
    local set=data/trees/$2 stamp=data/trees/$2.stamp
    if [ -e "$set/index.h5" ] && [ "$(cat "$stamp" 2>/dev/null)" = "${trees_import[*]}" ]; then return; fi
    rm -rf "$set"
    build/release/lockstep import voc "data/trees/photos/$1.xml" --out "$set" "${trees_import[@]}"
    echo "${trees_import[*]}" >"$stamp"
}
