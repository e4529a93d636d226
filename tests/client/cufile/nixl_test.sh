#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# NIXL's stock wheel, by its plug-ins for cuFile, over our libcufile.so: memory to file and back, on a
# mount and on tmpfs.
#
# usage: nixl_test.sh [--install] [--plugin DIR] RUN MKFS DAEMON
# NIXL is imported by $GPUNVME_NIXL_PYTHON (python3); --install makes an environment with it first.
# --plugin: by our plug-in in DIR instead of cuFile, also under its other names; "none": it was not
# built.
# Ends with 77 where there is no NIXL, or no mount can be made.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
install='' plugin_dir=''
while [ $# -gt 3 ]; do
    case $1 in
    --install) install=yes ;;
    --plugin)
        plugin_dir=$2
        shift
        ;;
    esac
    shift
done
run=$1 mkfs=$2 daemon=$3
python=${GPUNVME_NIXL_PYTHON:-python3}
work=$(mktemp -d /dev/shm/gpunvme-nixl-XXXXXX)
served=

finish() {
    if [ -n "$served" ]; then
        umount "$work/mnt" || umount -l "$work/mnt" || true
        wait "$served" || echo "nixl: the daemon ended with status $?"
    fi
    rm -rf "$work"
}
trap finish EXIT

skip() {
    echo "skipped: $1"
    exit 77
}

install_nixl() {
    python3 -m venv "$work/env"
    python=$work/env/bin/python
    if ! "$python" -m pip install -q numpy >"$work/log" 2>&1 ||
        ! "$python" -m pip install -q --no-deps nixl nixl-cu13 nvidia-cuda-runtime >"$work/log" 2>&1; then
        skip "NIXL's wheels cannot be installed here: $(tail -1 "$work/log")"
    fi
}

mount_image() {
    if [ ! -e /dev/fuse ] || [ "$(id -u)" != 0 ]; then
        skip "mounting needs root and /dev/fuse"
    fi
    mkdir "$work/mnt" "$work/tmpfs"
    "$mkfs" -q -s 128M "$work/image"
    "$daemon" "$work/image" "$work/mnt" -f -o executor=cpu >"$work/log" 2>&1 &
    served=$!
    for _ in $(seq 100); do
        mountpoint -q "$work/mnt" && return
        sleep 0.1
    done
    cat "$work/log"
    exit 1
}

# NIXL prints where it loads its plug-in from, and what fails.
use_plugin() {
    local with=("$run") proof="totals: 9 reads"
    if [ "$1" = GPUNVME ]; then
        with=(env "NIXL_PLUGIN_DIR=$plugin_dir" NIXL_LOG_LEVEL=INFO) proof="hold what was written"
    elif [ -n "$plugin_dir" ]; then
        with=(env NIXL_LOG_LEVEL=INFO "PYTHON=$python" "XDG_CACHE_HOME=$work/cache"
            "$plugin_dir/gpunvme-nixl-env")
        proof="Discovered backend plugin: GPUNVME"
    fi
    echo "== $1 on $2"
    CUFILE_LOGGING_LEVEL=INFO LD_LIBRARY_PATH=$cudart timeout 120 \
        "${with[@]}" "$python" "$here/nixl_files.py" "$1" "$2" >"$work/out" 2>&1 || {
        cat "$work/out"
        exit 1
    }
    grep -E "GB/s|hold what|totals|cufile.*path:" "$work/out"
    grep -q "$proof" "$work/out" || { echo "our library was not used"; exit 1; }
}

[ "$plugin_dir" != none ] ||
    skip "the plug-in was not built: configure with GPUNVME_NIXL_SOURCE (integrations/README.md)"
[ -z "$install" ] || install_nixl
"$python" -c 'import nixl' 2>/dev/null ||
    skip "$python has no NIXL: run this with --install, or set GPUNVME_NIXL_PYTHON"
# The plug-ins want the CUDA runtime, which a wheel has below site-packages.
cudart=$("$python" -c 'import glob, sysconfig
found = glob.glob(sysconfig.get_path("purelib") + "/nvidia/**/libcudart.so.*", recursive=True)
print(found[0].rsplit("/", 1)[0] if found else "")')
mount_image
plugins=(GDS_MT GDS)
[ -z "$plugin_dir" ] || plugins=(GPUNVME GDS_MT GDS)
for plugin in "${plugins[@]}"; do
    use_plugin "$plugin" "$work/mnt"
    use_plugin "$plugin" "$work/tmpfs"
done
if [ -n "$plugin_dir" ]; then
    XDG_CACHE_HOME=$work/cache PYTHON=$python LD_LIBRARY_PATH=$cudart "$plugin_dir/gpunvme-nixl-env" \
        "$python" "$here/nixl_files.py" POSIX "$work/tmpfs" || exit 1
    others=$(find "$work/cache" -name 'libplugin_*' -xtype f ! -lname "$(readlink -f "$plugin_dir")/*" |
        wc -l)
    [ "$others" -gt 0 ] || { echo "gpunvme-nixl-env: no link to another plug-in of NIXL"; exit 1; }
fi
