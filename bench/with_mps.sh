#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs a program, and all that it starts, as clients of an MPS server of its own:
# with_mps.sh PROGRAM [ARGUMENT...]
set -euo pipefail

[ $# -ge 1 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
command -v nvidia-cuda-mps-control >/dev/null || {
    echo "with_mps.sh: nvidia-cuda-mps-control: not in PATH, it comes with the driver" >&2
    exit 1
}

dir=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$dir/pipe CUDA_MPS_LOG_DIRECTORY=$dir/log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
# shellcheck disable=SC2317 # called by trap
clean_up() {
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

nvidia-cuda-mps-control -d
"$@"
