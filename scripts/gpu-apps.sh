#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs third-party programs over a mount, by cuFile and by the Python package,
# on a machine with a GPU, and prints a table that compares their figures.
# shellcheck disable=SC2317 # the steps are called by name
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/gpu-apps.sh [--on-mount DIR] [STEP...]
Steps, all of them in this order without an argument: load latency records types save
transformers kvikio kvikio-cc cudf dali hdf5 nixl examples python layers gds instanttensor
fastsafetensors kvikio-tests. Needs the build of `scripts/gpu-test.sh --build`, and PyTorch. A
library that is missing is reported and left out; every byte that is read is verified.
  --on-mount    over this mount instead of a fresh one in /dev/shm
  BUILD_DIR     build folder (build/gpu)
  PEERS_WHEELS  a folder of wheels: KvikIO, cuDF, DALI, InstantTensor, fastsafetensors, NIXL; with
                what they need, or PYTHONPATH names the folder where that is installed
  KVIKIO_TESTS  the folder of KvikIO's tests (python/kvikio/tests of its repository)
  VFD_GDS       the folder bin/ of a build of hpc-io/vfd-gds with its tests
  APPS_MIB      size of the file that is read (4096)
  APPS_BUDGET   seconds for all steps (185): what finds no time left is left out
  APPS_OPTIONS  mount options (executor=cuda,direct=all,sim=threads:4)
  APPS_PYTHON   the interpreter (python3)
USAGE
}

STEPS_KNOWN=(load latency records types save transformers kvikio kvikio-cc cudf dali hdf5 nixl
    examples python layers gds instanttensor fastsafetensors kvikio-tests)
MNT='' steps=()
while [ $# -gt 0 ]; do
    case $1 in
    --on-mount)
        MNT=${2:-}
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        [[ " ${STEPS_KNOWN[*]} " = *" $1 "* ]] || die "$1: no such step, see --help"
        steps+=("$1")
        ;;
    esac
    shift
done
[ "${#steps[@]}" -gt 0 ] || steps=("${STEPS_KNOWN[@]}")

BUILD_DIR=${BUILD_DIR:-$GPUNVME_ROOT/build/gpu}
MIB=${APPS_MIB:-4096}
BUDGET=${APPS_BUDGET:-185}
INSTALL=$BUILD_DIR/install
PYTHON=${APPS_PYTHON:-python3}
[ -d "$INSTALL" ] || die "$INSTALL: not there, run scripts/gpu-test.sh --build"

# The library folder has different names on different systems.
LIBRARY=$(find "$INSTALL" -name libgpunvme.so.0 -print -quit)
[ -n "$LIBRARY" ] || die "$INSTALL: no libgpunvme.so.0, run scripts/gpu-test.sh --build"

if [ -z "$MNT" ]; then
    nvidia-smi -L >/dev/null 2>&1 || die "nvidia-smi: no CUDA device here; this needs one"
    use_prefix
    PATH=$INSTALL/bin:$INSTALL/sbin:$PATH
    LD_LIBRARY_PATH=$(dirname "$LIBRARY")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PATH LD_LIBRARY_PATH
    exec bash "$GPUNVME_ROOT/bench/on_mount.sh" "$((MIB + MIB / 2 + 4096))M" \
        "${APPS_OPTIONS:-executor=cuda,direct=all,sim=threads:4}" \
        bash "$0" "${steps[@]}" --on-mount
fi

WORK=$(mktemp -d -p /dev/shm gpunvme-apps-XXXXXX)
trap 'rm -rf --one-file-system "$WORK"' EXIT
export GPUNVME_LIBRARY=$LIBRARY PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$GPUNVME_ROOT/python${PYTHONPATH:+:$PYTHONPATH}
# The log has the number of transfers of our libcufile.so, and their paths.
RUN=(env CUFILE_LOGGING_LEVEL=INFO "CUFILE_LOGFILE_PATH=$WORK/cufile.log" "$INSTALL/bin/gpunvme-run")
APPS=("$PYTHON" "$GPUNVME_ROOT/bench/apps.py" --mib "$MIB")
ON_MOUNT=mount=$MNT/apps.safetensors ON_TMPFS=tmpfs=$WORK/apps.safetensors
TABLE=() FAILED=0
: >"$WORK/rows"

row() {
    TABLE+=("$(printf '%-34s %s' "$1" "$2")")
}

# bounded NAME SECONDS COMMAND...: writes standard output to $WORK/out and
# records the result.
bounded() {
    local name=$1 limit=$2 left=$((BUDGET - SECONDS)) rc=0 start=$SECONDS why
    shift 2
    if [ "$left" -lt 10 ]; then
        row "$name" "left out: no time"
        return 0
    fi
    [ "$limit" -lt "$left" ] || limit=$left
    say "$name"
    rm -f "$WORK/cufile.log"
    timeout -k 5 "$limit" "$@" >"$WORK/out" 2>"$WORK/log" </dev/null || rc=$?
    case $rc in
    0) row "$name" "passed, $((SECONDS - start)) s" ;;
    77) row "$name" "not run: $(tail -n 1 "$WORK/log")" ;;
    *)
        FAILED=1
        why=$(cat "$WORK/log" "$WORK/out" | { grep -v "^ *\$" || true; } | tail -n 1 | cut -c1-200)
        [ "$rc" != 124 ] || why="took longer than $limit s"
        row "$name" "FAILED, exit $rc: $why"
        tail -n 25 "$WORK/log"
        ;;
    esac
    tail -n 4 "$WORK/log" | cut -c1-300
    row_of_totals
}

# Adds the totals from the log of the process that read most.
row_of_totals() {
    [ -e "$WORK/cufile.log" ] || return 0
    row "" "$(sed -n 's/^.*totals: \([0-9]*\)/\1/p' "$WORK/cufile.log" | sort -n | tail -n 1)"
}

# figures NAME SECONDS COMMAND...: runs bounded and adds the lines of JSON to
# the table.
figures() {
    bounded "$@"
    if [ -s "$WORK/out" ]; then
        cat "$WORK/out" >>"$WORK/rows"
        : >"$WORK/out"
    fi
}

# tests NAME SECONDS COMMAND...: runs bounded and adds pytest's summary and its
# reasons of skips.
tests() {
    local line
    bounded "$@"
    while IFS= read -r line; do
        row "" "$line"
    done < <(grep -E '^(SKIPPED|FAILED|ERROR)|^=* ?[0-9]+ (passed|failed)' "$WORK/out" |
        cut -c1-160 | tail -n 25)
    : >"$WORK/out"
}

# Unpacks the wheels into one folder, which precedes the installed packages. pip
# --target would leave NIXL's folder for plug-ins empty.
use_wheels() {
    local wheel folder=$WORK/site
    mkdir -p "$folder"
    for wheel in "${PEERS_WHEELS:-}"/*.whl; do
        [ -e "$wheel" ] || continue
        "$PYTHON" -m zipfile -e "$wheel" "$folder" 2>"$WORK/log" ||
            warn "${wheel##*/}: $(tail -n 1 "$WORK/log")"
    done
    PYTHONPATH=$PYTHONPATH:$folder
}

# fastsafetensors checks for the device of nvidia-fs before it tries cuFile; any
# file of that name is sufficient.
fastsafetensors_by_cufile() {
    local node=/dev/nvidia-fs0 made=
    if [ ! -e "$node" ] && touch "$node" 2>/dev/null; then
        made=$node
    fi
    figures "fastsafetensors, by cuFile" 30 "${RUN[@]}" "${APPS[@]}" fastsafetensors \
        --backend GDS "$ON_MOUNT"
    [ -z "$made" ] || rm -f "$made"
}

kvikio_rates() {
    local label="KvikIO over POSIX" mode=ON run=()
    if [ "$1" = gpunvme ]; then
        label="KvikIO over gpunvme" mode=OFF run=("${RUN[@]}")
    fi
    KVIKIO_COMPAT_MODE=$mode figures "$label" 45 ${run[@]+"${run[@]}"} "${APPS[@]}" kvikio \
        --label "$label" "$ON_MOUNT" "$ON_TMPFS"
}

step_kvikio_tests() {
    [ -n "${KVIKIO_TESTS:-}" ] || return 0
    local top base
    top=$(cd "$KVIKIO_TESTS/.." && pwd)
    base=$(basename "$KVIKIO_TESTS")
    mkdir -p "$MNT/kvikio-tests"
    cd "$top"
    KVIKIO_COMPAT_MODE=OFF tests "KvikIO's own tests" 80 "${RUN[@]}" "$PYTHON" -m pytest -q -rf \
        -p no:cacheprovider --basetemp="$MNT/kvikio-tests/t" "$base/test_basic_io.py" \
        "$base/test_async_io.py" "$base/test_cufile_driver.py"
    cd "$GPUNVME_ROOT"
}

step_load() {
    figures "load_file, safetensors" 40 "${APPS[@]}" load "$ON_MOUNT" "$ON_TMPFS"
}

step_latency() {
    figures "Python, 4 KiB" 25 "${APPS[@]}" latency "$ON_MOUNT" "$ON_TMPFS"
}

step_records() {
    figures "records" 25 "${APPS[@]}" dataset "$ON_MOUNT"
}

step_types() {
    figures "types of safetensors" 20 "${APPS[@]}" types "$ON_MOUNT"
}

step_save() {
    figures "checkpoints, save_file" 40 "${APPS[@]}" save "$ON_MOUNT"
}

step_transformers() {
    figures "transformers, several shards" 40 "${APPS[@]}" transformers "$ON_MOUNT"
}

# The examples over mounts of their own.
step_examples() {
    tests "examples" 30 ctest --test-dir "$BUILD_DIR" --no-tests=error \
        --output-on-failure -R '^examples_test$'
}

# Reads with the daemon's kernels, with kernels of the process, and by copies
# from host memory.
step_layers() {
    local way
    for way in GPU DIRECT BOUNCE; do
        figures "layers, $way" 25 "${APPS[@]}" layers --backend "$way" "$ON_MOUNT"
    done
}

step_kvikio() {
    kvikio_rates gpunvme
    kvikio_rates posix
}

# kvikio_random.cc is compiled with the headers of the wheel.
step_kvikio_cc() {
    local kvikio=$WORK/site/libkvikio logger=$WORK/site/rapids_logger/lib64
    local cuda=${CUDA_HOME:-/usr/local/cuda} program=$BUILD_DIR/kvikio_random
    if [ ! -d "$kvikio" ]; then
        row "KvikIO from C++" "not run: no wheel of libkvikio"
        return 0
    fi
    local path=$kvikio/lib64:$logger:$cuda/lib64
    if [ ! -x "$program" ]; then
        bounded "KvikIO from C++, compiled" 60 g++ -std=c++20 -O2 -DKVIKIO_CUFILE_FOUND \
            -DKVIKIO_CUFILE_VERSION_API_FOUND -DWITH_CUDA -I"$kvikio/include" -I"$cuda/include" \
            "$GPUNVME_ROOT/bench/kvikio_random.cc" -L"$kvikio/lib64" -L"$logger" -L"$cuda/lib64" \
            -Wl,--allow-shlib-undefined -lkvikio -lrapids_logger -lcudart -o "$program"
    fi
    LD_LIBRARY_PATH=$path:${LD_LIBRARY_PATH:-} KVIKIO_COMPAT_MODE=OFF bounded \
        "KvikIO from C++ over gpunvme" 30 "${RUN[@]}" "$program" "$MNT/kvikio-random"
    row "" "$(tail -n 1 "$WORK/out")"
    LD_LIBRARY_PATH=$path:${LD_LIBRARY_PATH:-} KVIKIO_COMPAT_MODE=ON bounded \
        "KvikIO from C++ over POSIX" 30 "$program" "$MNT/kvikio-random"
    row "" "$(tail -n 1 "$WORK/out")"
    rm -f "$MNT/kvikio-random"
}

# pylibcudf moves files by KvikIO, for which one task is one transfer.
step_cudf() {
    local settings=(env KVIKIO_NTHREADS=4 KVIKIO_TASK_SIZE=16777216)
    KVIKIO_COMPAT_MODE=OFF figures "cuDF over gpunvme" 45 "${RUN[@]}" "${settings[@]}" \
        "${APPS[@]}" cudf --label "cuDF over gpunvme" "$ON_MOUNT"
    KVIKIO_COMPAT_MODE=ON figures "cuDF over POSIX" 45 "${settings[@]}" "${APPS[@]}" cudf \
        --label "cuDF over POSIX" "$ON_MOUNT" "$ON_TMPFS"
}

step_dali() {
    figures "DALI, by cuFile" 45 "${RUN[@]}" "${APPS[@]}" dali --backend GDS "$ON_MOUNT"
    figures "DALI, by POSIX" 45 "${APPS[@]}" dali --backend POSIX "$ON_MOUNT" "$ON_TMPFS"
}

# The tests run as one process, because HDF5's driver for cuFile supports no more.
step_hdf5() {
    if [ ! -x "${VFD_GDS:-}/gds_test" ]; then
        row "HDF5" "not run: VFD_GDS names no folder with gds_test"
        return 0
    fi
    cd "$MNT"
    HDF5_PLUGIN_PATH=$VFD_GDS bounded "HDF5, tests of its driver for cuFile" 60 "${RUN[@]}" \
        "$VFD_GDS/gds_test"
    row "" "$(grep -a passed "$WORK/out" || true)"
    cd "$GPUNVME_ROOT"
}

step_gds() {
    figures "torch.cuda.gds" 30 "${RUN[@]}" "${APPS[@]}" torch-gds "$ON_MOUNT" "$ON_TMPFS"
}

step_instanttensor() {
    figures "InstantTensor, by cuFile" 30 "${RUN[@]}" "${APPS[@]}" instanttensor \
        --backend CUFILE "$ON_MOUNT"
    figures "InstantTensor, by mmap" 30 "${APPS[@]}" instanttensor --backend MMAP "$ON_TMPFS"
}

step_fastsafetensors() {
    fastsafetensors_by_cufile
    figures "fastsafetensors, by POSIX" 30 "${APPS[@]}" fastsafetensors --backend POSIX \
        "$ON_TMPFS"
}

# The plug-in under its own name, and under one that programs know.
step_nixl() {
    local name wheel
    wheel=$(echo "$WORK"/site/.nixl_cu1*.libs/plugins)
    [ -d "$wheel" ] && export NIXL_PLUGIN_DIR=${NIXL_PLUGIN_DIR:-$wheel}
    figures "NIXL" 30 "${RUN[@]}" "${APPS[@]}" nixl --backend GDS_MT "$ON_MOUNT"
    [ -e "$INSTALL/bin/gpunvme-nixl-env" ] || return 0
    for name in GPUNVME GDS_MT; do
        XDG_CACHE_HOME=$WORK/cache PYTHON=$PYTHON figures "NIXL, our plug-in as $name" 30 \
            "$INSTALL/bin/gpunvme-nixl-env" "${APPS[@]}" nixl --backend "$name" "$ON_MOUNT"
    done
}

step_python() {
    GPUNVME_MOUNT=$MNT tests "tests of the Python package" 100 "$PYTHON" -m pytest -q -rfs \
        -p no:cacheprovider "$GPUNVME_ROOT/python/tests"
}

use_wheels
figures "the file" 60 "${APPS[@]}" make "$ON_MOUNT" "$ON_TMPFS"
for step in "${steps[@]}"; do
    "step_${step//-/_}"
done
rm -rf "$MNT/kvikio-tests" "${ON_MOUNT#*=}"

echo
printf '%s\n' "${TABLE[@]}"
echo
"$PYTHON" "$GPUNVME_ROOT/bench/apps_report.py" "$WORK/rows"
echo "$SECONDS s in all"
exit "$FAILED"
