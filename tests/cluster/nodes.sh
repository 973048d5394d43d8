#!/usr/bin/env bash
# Simulated machines on one: network namespaces on a bridge of their own, each with its host name and /dev/shm. Needs root.
# Nothing is made in the machine's own network namespace but the names in /run/netns. PREFIX keeps runs apart.
#   nodes.sh PREFIX probe [RATE]    whether they can be made here, and their links shaped
#   nodes.sh PREFIX up N [RATE]     PREFIX0 to PREFIX(N-1); RATE of each one's link, both ways, such as 1gbit
#   nodes.sh PREFIX exec NODE CMD   on that machine
#   nodes.sh PREFIX mpirun ARGS     from the first machine over all of them
#   nodes.sh PREFIX kill NODE       every process on it, as if the power went
#   nodes.sh PREFIX link NODE down
#   nodes.sh PREFIX down            all of it
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
prefix=$1 action=$2
shift 2
switch=${prefix}sw hosts=${TMPDIR:-/tmp}/lockstep-hosts.$prefix

nodes() { ip netns list | awk '{print $1}' | grep -E "^$prefix[0-9]+\$" | sort -V; }
shape() { tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst 256k latency 50ms; }
processes_on() { ip netns pids "$1" 2>/dev/null || true; }

case $action in
    probe)
        ip netns add "$switch"
        ip -n "$switch" link add br0 type bridge
        nsenter --net="/run/netns/$switch" unshare --uts --mount --propagation slave true
        [ -z "${1:-}" ] || shape "$switch" br0 "$1"
        ip netns del "$switch" ;;
    up)
        ip netns add "$switch"
        ip -n "$switch" link add br0 type bridge
        ip -n "$switch" link set br0 up
        echo '127.0.0.1 localhost' >"$hosts"
        for ((i = 0; i < $1; i++)); do
            node=$prefix$i
            ip netns add "$node"
            ip -n "$node" link set lo up
            ip -n "$switch" link add "p$node" type veth peer name eth0 netns "$node"
            ip -n "$switch" link set "p$node" master br0 up
            ip -n "$node" addr add "10.77.0.$((i + 1))/24" dev eth0
            ip -n "$node" link set eth0 up
            echo "10.77.0.$((i + 1)) $node" >>"$hosts"
            if [ -n "${2:-}" ]; then
                shape "$node" eth0 "$2"
                shape "$switch" "p$node" "$2"
            fi
        done ;;
    exec)
        node=$1
        shift
        # shellcheck disable=SC2016
        exec nsenter --net="/run/netns/$node" unshare --uts --mount --propagation slave /bin/sh -c '
            hostname "$0"; mount -t tmpfs -o mode=1777 shm /dev/shm; mount --bind "$1" /etc/hosts; shift; exec "$@"' \
            "$node" "$hosts" "$@" ;;
    rsh)  # mpirun calls its agent as it would call ssh: HOST COMMAND LINE
        node=$1
        shift
        exec "$self" "$prefix" exec "$node" /bin/sh -c "$*" ;;
    mpirun)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # Open MPI unloads its plugins before leaks are reported, so theirs have no name that a suppression could match.
        export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
        exec "$self" "$prefix" exec "${prefix}0" mpirun --mca plm rsh --mca plm_rsh_agent "$self $prefix rsh" \
            --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 --mca btl self,vader,tcp --mca pml ob1 \
            --mca mpi_yield_when_idle 1 --bind-to none -x ASAN_OPTIONS "$@" ;;
    kill)
        for process in $(processes_on "$1"); do kill -KILL "$process" 2>/dev/null || true; done ;;
    link)
        ip -n "$1" link set eth0 "$2" ;;
    down)
        for node in $(nodes) "$switch"; do
            for process in $(processes_on "$node"); do kill -KILL "$process" 2>/dev/null || true; done
            ip netns del "$node" 2>/dev/null || true
        done
        rm -f "$hosts" ;;
    *)
        sed -n '2,11p' "$self" >&2
        exit 2 ;;
esac
