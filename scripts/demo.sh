#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Demonstrates the whole path with real data: formats an image, mounts it
# through the simulated NVMe controller, copies files to it, reads them through
# the GPU path, compares checksums, checks the file system, mounts it again and
# compares again.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/demo.sh [--as-user] [FILE...]
Without files, takes at least 1 GiB of this machine's own large files (DEMO_BYTES sets another sum).
  --as-user        for root: after the build, all of it as an ordinary user without further groups,
                   in a mount namespace in which /dev/fuse is open to all and /etc/mtab is missing
  BUILD_DIR        build folder (build/demo); it is kept. One that is configured already is used
                   as it is.
  TMPDIR           where the image goes when /dev/shm has no room
  GPUNVME_NO_SETUP 1: install nothing
USAGE
}

WANTED=${DEMO_BYTES:-$((1 << 30))}
WORK='' IMAGE='' MNT='' CHILD=''

# ---- Clean-up: whatever happens, nothing is left but the build ----------------------------------

# Prints the id of the daemon in the background. It is found by its image, which
# no other process names.
daemon_pids() {
    pgrep -f -- "gpunvmefs $IMAGE " || true
}

# unmount: unmounts and waits until the daemon has written everything and
# exited.
unmount() {
    for _ in $(seq 40); do
        mountpoint -q "$MNT" 2>/dev/null || break
        if [ "$(id -u)" = 0 ]; then
            umount "$MNT" 2>/dev/null && break
        else
            # fusermount3 needs /etc/mtab, but umount does not.
            fusermount3 -q -u "$MNT" 2>/dev/null && break
            umount -q "$MNT" && break
        fi
        sleep 0.25
    done
    if mountpoint -q "$MNT" 2>/dev/null; then
        warn "$MNT: still busy after 10 s"
        return 1
    fi
    for _ in $(seq 300); do
        [ -n "$(daemon_pids)" ] || return 0
        sleep 0.1
    done
    warn "gpunvmefs: still running 30 s after the unmount, pid $(daemon_pids)"
    return 1
}

# Kills a process and its descendants: the build is a shell, a ninja and its
# compilers.
kill_tree() {
    local child
    for child in $(pgrep -P "$1" || true); do
        kill_tree "$child"
    done
    kill "$1" 2>/dev/null || true
}

# shellcheck disable=SC2317 # called by trap
clean_up() {
    local rc=$? pid
    trap - EXIT INT TERM HUP
    if [ -n "$CHILD" ]; then
        kill_tree "$CHILD"
        wait "$CHILD" 2>/dev/null || true
    fi
    if [ -n "$MNT" ] && ! unmount; then
        umount -l "$MNT" 2>/dev/null || fusermount3 -q -u -z "$MNT" || true
        for pid in $(daemon_pids); do
            kill -9 "$pid" 2>/dev/null || true
        done
    fi
    [ -z "$IMAGE" ] || rm -f "$IMAGE"
    [ -z "$WORK" ] || rm -rf --one-file-system "$WORK"
    exit "$rc"
}

# Runs a command so that an interrupt ends it at once: bash delays traps while
# it waits for a command in the foreground, but not for one in the background.
run() {
    local rc=0
    "$@" <&0 &
    CHILD=$!
    wait "$CHILD" || rc=$?
    CHILD=''
    return "$rc"
}

# ---- Files to copy, and the target -------------------------------------------------------------

# Prints large files of the machine until there are enough bytes, one line each:
# bytes, tab, path. The largest come first, but those above 64 MiB last, so that
# there are several files.
own_files() {
    # Folders that the user may not read are not an error.
    { find /usr /opt /lib /var/lib -xdev -type f -size +63k -readable ! -path '*[[:cntrl:]]*' \
        ! -path "$GPUNVME_ROOT/*" -printf '%D:%i\t%s\t%p\n' 2>/dev/null || true; } |
        awk -F '\t' '!seen[$1]++ { print ($2 > 67108864) "\t" $2 "\t" $3 }' |
        sort -t "$(printf '\t')" -k1,1n -k2,2nr -k3 |
        awk -F '\t' -v want="$WANTED" 'sum < want { print $2 "\t" $3; sum += $2 }'
}

given_files() {
    local file
    for file in "$@"; do
        [ -e "$file" ] || die "$file: no such file, name files that exist"
        [ -f "$file" ] || die "$file: not a regular file, name files only"
        [[ $(realpath -- "$file") != *[[:cntrl:]]* ]] ||
            die "$file: control characters in its name, name files without"
        [ -r "$file" ] || die "$file: not readable, run as a user who may read it"
        printf '%s\t%s\n' "$(stat -L -c %s -- "$file")" "$(realpath -- "$file")"
    done
}

# place_image BYTES: creates a new image file of that size, in memory if there
# is room.
place_image() {
    local bytes=$1 spare=$((512 << 20)) dir shm memory
    dir=${TMPDIR:-/tmp}
    shm=$(df --output=avail -B1 /dev/shm 2>/dev/null | tail -n 1 || true)
    memory=$(awk '/^MemAvailable:/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
    if [ -w /dev/shm ] && [ "${shm:-0}" -ge $((bytes + spare)) ] &&
        [ "$memory" -ge $((bytes + 2 * spare)) ]; then
        dir=/dev/shm
    elif [ "$(df --output=avail -B1 "$dir" | tail -n 1)" -lt $((bytes + spare)) ]; then
        die "$dir: no room for an image of $((bytes >> 20)) MiB, set TMPDIR to a folder that has it"
    fi
    IMAGE=$(mktemp "$dir/gpunvme-demo.XXXXXX.img")
    truncate -s "$bytes" "$IMAGE"
    MEDIA="image in $dir, $((bytes >> 20)) MiB"
}

# ---- The steps ----------------------------------------------------------------------------------

build_programs() {
    local dir=$1 log=$WORK/build.log options=()
    if [ -n "${DEMO_PROGRAMS:-}" ]; then
        export PATH="$DEMO_PROGRAMS/bin:$DEMO_PROGRAMS/sbin:$PATH"
        return 0
    fi
    if [ ! -e "$dir/build.ninja" ]; then
        options=(-DCMAKE_BUILD_TYPE=Release -DGPUNVME_TESTS=OFF -DGPUNVME_BENCH=OFF)
    fi
    say "build in $dir"
    if ! run configure_and_build "$dir" ${options[@]+"${options[@]}"} >"$log" 2>&1 ||
        ! cmake --install "$dir" --prefix "$dir/install" >>"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die "build: failed, the end of its output is above"
    fi
    export PATH="$dir/install/bin:$dir/install/sbin:$PATH"
}

# as_user [FILE...]: runs this script again as an ordinary user, with the
# programs in DEMO_PROGRAMS.
as_user() {
    local home=$WORK/home
    mkdir -p "$home" "$WORK/upper"
    chown 65534:65534 "$home"
    chmod 755 "$WORK"
    mknod -m 666 "$WORK/fuse" c 10 229
    say "as an ordinary user"
    # shellcheck disable=SC2016 # expanded by the inner shell
    run unshare -m --propagation private bash -c '
        set -e
        work=$1 home=$2 script=$3
        shift 3
        mount --bind "$work/fuse" /dev/fuse
        mount -t tmpfs -o mode=700 none "$work/upper"
        mkdir "$work/upper/upper" "$work/upper/work"
        mount -t overlay -o "lowerdir=/etc,upperdir=$work/upper/upper,workdir=$work/upper/work" \
            none /etc
        rm -f /etc/mtab
        export HOME=$home TMPDIR=$home GPUNVME_NO_SETUP=1
        exec setpriv --reuid=65534 --regid=65534 --clear-groups \
            bash "$script" "$@"' \
        demo "$WORK" "$home" "$GPUNVME_ROOT/scripts/demo.sh" "$@"
}

mount_image() {
    run gpunvmefs "$IMAGE" "$MNT" || die "gpunvmefs: did not mount $IMAGE"
    mountpoint -q "$MNT" || die "$MNT: nothing is mounted there although gpunvmefs said so"
}

checksum() {
    run xxhsum -q -H3 - <"$1" >"$WORK/sum"
    grep -oE '[0-9a-f]{16}' "$WORK/sum"
}

# copy_in: copies the files of the list with one process, makes each durable,
# and records the checksums of the sources.
copy_in() {
    local number=0 source name
    mkdir "$MNT/data"
    while IFS=$'\t' read -r _ source; do
        number=$((number + 1))
        name=${source##*/}
        printf -v name 'data/%04d-%s' "$number" "${name//[^A-Za-z0-9._+-]/_}"
        printf '%s\t%s\n' "$source" "${name:0:200}" >>"$WORK/names"
    done <"$WORK/list"
    run python3 - "$WORK" "$MNT" <<'PYTHON' || die "the files cannot be copied in"
import os, shutil, sys, time
work, mnt = sys.argv[1:]
with open(f"{work}/names", errors="surrogateescape") as names, \
     open(f"{work}/copy-times", "w") as times:
    for line in names:
        source, name = line.rstrip("\n").split("\t")
        with open(source, "rb") as src, open(f"{mnt}/{name}", "xb", buffering=0) as to:
            start = time.time()
            shutil.copyfileobj(src, to, 1 << 20)
            os.fsync(to.fileno())
            times.write(f"{start} {time.time()}\n")
PYTHON
    while IFS=$'\t' read -r source name; do
        checksum "$source" >>"$WORK/sums"
    done <"$WORK/names"
}

# gpu_read PASS: reads all files through the GPU path, a few hundred per
# command, and keeps the reports of the command, one JSON document per line.
gpu_read() {
    local pass=$1 first paths
    mapfile -t paths < <(cut -f 2 "$WORK/names")
    paths=("${paths[@]/#/$MNT/}")
    for ((first = 0; first < ${#paths[@]}; first += 200)); do
        run gpunvme read -q -o json --checksum "${paths[@]:first:200}" >"$WORK/read.json" ||
            die "pass $pass: the GPU path could not read every file"
        tr -d '\n' <"$WORK/read.json" >>"$WORK/gpu-$pass"
        printf '\n' >>"$WORK/gpu-$pass"
    done
}

# ordinary_read PASS: reads all files by read(2) of one process. The first
# ordinary read of a file since the mount is timed without a checksum; the
# checksums follow.
ordinary_read() {
    local pass=$1 name
    run python3 - "$WORK" "$MNT" "$pass" <<'PYTHON' || die "pass $pass: a file cannot be read"
import sys, time
work, mnt, number = sys.argv[1:]
buffer = bytearray(1 << 20)
with open(f"{work}/names", errors="surrogateescape") as names, \
     open(f"{work}/ordinary-times-{number}", "w") as times:
    for line in names:
        with open(f"{mnt}/" + line.rstrip("\n").split("\t")[1], "rb", buffering=0) as file:
            start = time.time()
            while file.readinto(buffer):
                pass
            times.write(f"{start} {time.time()}\n")
PYTHON
    while IFS=$'\t' read -r _ name; do
        checksum "$MNT/$name" >>"$WORK/ordinary-$pass"
    done <"$WORK/names"
}

# compare PASS: compares every file, read on both paths, with its source.
compare() {
    local pass=$1
    gpu_read "$pass"
    ordinary_read "$pass"
    python3 - "$WORK" "$pass" <<'PYTHON' || die "pass $pass: data differ"
import json, os, sys
work, number = sys.argv[1:]
def lines(name):
    return open(os.path.join(work, name), errors="replace").read().splitlines()
reads = [read for line in lines(f"gpu-{number}") for read in json.loads(line)["files"]]
names, sums = lines("names"), lines("sums")
ordinary = lines(f"ordinary-{number}")
bad = not len(names) == len(sums) == len(ordinary) == len(reads)
for name, source, plain, gpu in zip(names, sums, ordinary, reads):
    for path, found in (("ordinary", plain), ("GPU", gpu.get("xxh3"))):
        if found != source:
            bad = True
            print(f"demo.sh: {name}: XXH3 {found} by the {path} path, {source} at the source",
                  file=sys.stderr)
sys.exit(bad)
PYTHON
    say "pass $pass: source, ordinary read and GPU read are equal for every file"
}

check_image() {
    run fsck.gpunvme -n "$IMAGE" >"$WORK/fsck.log" 2>&1 || {
        cat "$WORK/fsck.log" >&2
        die "fsck.gpunvme: found the image wrong"
    }
}

table() {
    python3 - "$WORK" "$MEDIA" <<'PYTHON'
import collections, json, os, sys
work, media = sys.argv[1:]
def lines(name):
    return open(os.path.join(work, name)).read().splitlines()
def spent(name):
    return sum(float(end) - float(start) for start, end in map(str.split, lines(name)))
def reads(number):
    return [read for line in lines(f"gpu-{number}") for read in json.loads(line)["files"]]
def rate(size, seconds):
    return f"{size / seconds / 1e9:.2f} GB/s" if seconds > 0 else "-"
first, second = reads(1), reads(2)
both = first + second
size = sum(r["bytes"] for r in second)
info = json.load(open(os.path.join(work, "info.json")))
paths = collections.Counter(r["path"] for r in both)
rows = [
    ("files", f"{len(second)}, each read twice by each path"),
    ("bytes", f"{size:,} ({size / 2**30:.2f} GiB)"),
    ("executor", f"{info['executor']} ({info['executor_name']})"),
    ("path taken", ", ".join(f"{path}: {count} reads" for path, count in paths.items())),
    ("NVMe commands", f"{sum(r['commands'] for r in second):,} for the {len(second)} files"),
    ("checksums", "XXH3 equal: source, ordinary read, GPU read; also after fsck and a new mount"),
    ("fsck", "clean"),
    ("GPU path", rate(size, sum(r["seconds"] for r in second))),
    ("ordinary path", rate(size, spent("ordinary-times-2")) + " (read(2), nothing cached)"),
    ("copying in", rate(size, spent("copy-times")) + " (with fsync of every file)"),
    ("drive", f"simulated controller, {media}"),
]
print()
for key, value in rows:
    print(f"{key:15} {value}")
PYTHON
}

other_user=0
case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
--as-user)
    [ "$(id -u)" = 0 ] || die "--as-user: for root, leave it out"
    other_user=1
    shift
    ;;
esac

trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
WORK=$(mktemp -d "${TMPDIR:-/tmp}/gpunvme-demo.XXXXXX")

run_setup --need-mount
use_prefix
BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/demo}
if [ "$other_user" = 1 ]; then
    build_programs "$BUILD"
    DEMO_PROGRAMS=$BUILD/install as_user "$@"
    exit 0
fi
if [ $# -gt 0 ]; then
    given_files "$@" >"$WORK/list"
else
    own_files >"$WORK/list"
fi
[ -s "$WORK/list" ] || die "no files to copy, name some"
read -r files bytes < <(awk -F '\t' '{ sum += $1 } END { printf "%d %.0f\n", NR, sum }' "$WORK/list")
if [ $# = 0 ] && [ "$bytes" -lt "$WANTED" ]; then
    say "this machine has only $((bytes >> 20)) MiB in large files of its own: taking them all"
fi

build_programs "$BUILD"
place_image $(((bytes + bytes / 8 + (256 << 20)) >> 20 << 20))
mkdir "$WORK/mnt"
MNT=$WORK/mnt

say "mkfs and mount"
run mkfs.gpunvme -q -L demo "$IMAGE" || die "mkfs.gpunvme: failed on $IMAGE"
mount_image
gpunvme info -o json "$MNT" >"$WORK/info.json"
say "copy in $files files, $((bytes >> 20)) MiB"
copy_in
compare 1
unmount || die "$MNT: cannot be unmounted"
say "unmounted; fsck"
check_image
say "mount again"
mount_image
compare 2
unmount || die "$MNT: cannot be unmounted"
check_image
table
