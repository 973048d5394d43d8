# Installs what versions.sh lists and finds out quickly when nothing is to be done.
# shellcheck shell=bash disable=SC2154

set_up_packages() {
    local installed missing=() package
    if ! command -v dpkg-query >/dev/null; then
        say set-up "neither Debian nor Ubuntu: the equivalents of these packages have to be there: ${packages[*]}"
        return
    fi
    installed=$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
    for package in "${packages[@]}"; do
        grep -qx "$package installed" <<<"$installed" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0

    local as_root=() install="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || fail set-up "missing packages: ${missing[*]}
[set-up] only root can install them: sudo apt-get update && sudo $install"
        as_root=(sudo -n)
    fi
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    say set-up "installing ${#missing[@]} packages: ${missing[*]}"
    logged set-up apt-update.log "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update || exit 1
    # shellcheck disable=SC2086
    logged set-up apt-install.log "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 ${install#apt-get } && return

    for package in "${missing[@]}"; do
        apt-cache show --no-all-versions "$package" >/dev/null 2>&1 ||
            printf '[set-up] no such package in the configured archives: %s\n' "$package" >&2
    done
    fail set-up "not everything could be installed; to see why: $install"
}

# set_up_wheels NAME WHEEL...: a stamp in the environment holds the list that was installed last under that name.
set_up_wheels() {
    local stamp=.venv/lockstep-$1.stamp
    shift
    [ "$(cat "$stamp" 2>/dev/null)" != "$*" ] || return 0
    say set-up "installing into .venv: $*"
    local quiet=()
    [ -t 1 ] || quiet=(--quiet)
    .venv/bin/python -m pip install --no-input --disable-pip-version-check --no-deps "${quiet[@]}" "$@" ||
        fail set-up "could not install $*; to see why: .venv/bin/python -m pip install --no-deps $*"
    echo "$*" >"$stamp"
}

# set_up [WHEEL...]: the packages, the environment and its wheels, those in the arguments too.
set_up() {
    set_up_packages
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say set-up "making the virtual environment .venv"
        logged set-up venv.log /usr/bin/python3 -m venv --clear .venv || exit 1
    fi
    set_up_wheels pip "pip==$pip_version"  # it resumes broken downloads; Debian's does not
    set_up_wheels torch "${torch_wheels[@]}"
    if $cuda; then set_up_wheels cuda "${cuda_wheels[@]}"; fi
    [ $# -eq 0 ] || set_up_wheels test "$@"
}
