#!/usr/bin/env bash
# package.sh BUILD OUT: makes OUT/lockstep-VERSION-linux-x86_64.tar.gz, the command with every library that is not part of a
# base system. Not taken along, since they have to be the host's: glibc, the compiler's run-time libraries, and Open MPI, which
# has to be the one that mpirun or Slurm speaks with.
set -euo pipefail
build=$1 out=$2
checkout=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")

from_host() {
    case $1 in
        ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.*) true ;;
        libstdc++.so.* | libgcc_s.so.* | libmpi.so.*) true ;;
        *) false ;;
    esac
}

# Where the loader finds each library of the program, by name.
declare -A path
while IFS='|' read -r name file; do
    path[$name]=$file
done < <(ldd "$build/lockstep" | sed -nE 's/^\s*(\S+) => (\/.*) \(0x[0-9a-f]+\)$/\1|\2/p')

needed() { readelf --dynamic --wide "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'; }

# Only what the program or a library taken along asks for: what Open MPI needs stays at home with it.
declare -A taken
todo=("$build/lockstep")
while [ ${#todo[@]} -gt 0 ]; do
    user=${todo[-1]}
    unset 'todo[-1]'
    while read -r name; do
        if from_host "$name" || [ -n "${taken[$name]:-}" ]; then continue; fi
        taken[$name]=${path[$name]:?"[package] the loader does not find $name, which $user needs"}
        todo+=("${taken[$name]}")
    done < <(needed "$user")
done

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=lockstep-$version-linux-x86_64
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/$name
mkdir -p "$root"/{bin,lib,licenses} "$out"

# An RPATH of the old kind: it holds for the libraries' own needs too, and before LD_LIBRARY_PATH.
cp "$build/lockstep" "$root/bin/lockstep"
# shellcheck disable=SC2016
patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$root/bin/lockstep"
for library in "${!taken[@]}"; do
    cp --dereference "${taken[$library]}" "$root/lib/$library"
done

# Each library's licence travels with it. Of a library in /usr/lib, dpkg may know the place as /lib.
for file in "${taken[@]}"; do
    file=$(realpath "$file")
    package=$({ dpkg-query --search "$file" || dpkg-query --search "${file#/usr}"; } 2>/dev/null | head -n 1) || continue
    package=${package%%:*}
    cp "/usr/share/doc/$package/copyright" "$root/licenses/$package.txt"
done
for wheel in torch nvidia_cuda_runtime nvidia_cuda_cupti; do
    for text in "$checkout"/.venv/lib/python3*/site-packages/"$wheel"-*.dist-info/licenses/{LICENSE,License.txt}; do
        [ ! -e "$text" ] || cp "$text" "$root/licenses/$wheel.txt"
    done
done
for part in LICENSE README.md recipes docs; do
    [ ! -e "$checkout/$part" ] || cp -r "$checkout/$part" "$root/$part"
done

archive=$out/$name.tar.gz
tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$stage" "$name" | gzip -n -3 >"$archive.part"
mv "$archive.part" "$archive"
printf '[package] %s: %s, with %d libraries\n' "$archive" "$(du -h "$archive" | cut -f1)" "${#taken[@]}"
