#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the benchmarks of caches on a GPU, with small sizes: graph algorithms whose results must be
# those of memory, and many warps on a cache of few lines while the drive fails reads.
# usage: cache_bench_gpu_test.sh BENCH_FOLDER FOLDER_OF_PROGRAMS...
set -euo pipefail

nvidia-smi -L >/dev/null 2>&1 || {
    echo "skipped: no CUDA device"
    exit 77
}
on_mount=$1/on_mount.sh
shift
for folder; do
    PATH=$folder:$PATH
done

bash "$on_mount" 128M gpu=require,direct=all graph_bench -k 10 -l 4096 -r 1
bash "$on_mount" 256M gpu=require,direct=all graph_bench -k 16 -r 1
for seed in 1 2 3; do
    # Metadata lies elsewhere, and its reads are repeated.
    SIM="--threads=4 --seed=$seed --fault=status,op=read,lba=16384+40000,one-in=50,status=0x281" \
        bash "$on_mount" 512M gpu=require,direct=all cache_bench -s 256 -f 3
done
