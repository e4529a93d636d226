#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# gpunvme-run: a program that opens libcufile.so by either name gets ours, with its configuration.
#
# usage: run_test.sh RUN PYTHON
set -euo pipefail

run=$1 python=$2 folder=$(dirname "$1")
program='
import ctypes, os, sys
names = [os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if "libcufile" in line]
for name in "libcufile.so", "libcufile.so.0":
    version = ctypes.c_int()
    assert ctypes.CDLL(name).cuFileGetVersion(ctypes.byref(version)) == 0
    assert version.value == 1200, version
loaded = {os.path.realpath(l.split()[-1]) for l in open("/proc/self/maps") if "libcufile" in l}
assert loaded == set(names) and len(loaded) == 1, loaded
print(loaded.pop())
level = ctypes.c_int()
ctypes.CDLL("libcufile.so").cuFileGetStatsLevel(ctypes.byref(level))
print("level", level.value)
sys.exit(3)
'

fail() {
    echo "$1" >&2
    exit 1
}

unset CUFILE_ENV_PATH_JSON
set +e
out=$("$run" --log ERROR -- "$python" -c "$program")
status=$?
set -e
[ "$status" = 3 ] || fail "status $status: not the program's"
[ "$(echo "$out" | head -1)" = "$(readlink -f "$folder/libcufile.so.0")" ] || fail "loaded: $out"
[ -e /etc/cufile.json ] || echo "$out" | grep -qx "level 1" || fail "cufile.json was not read: $out"
out=$(CUFILE_STATS=2 "$run" "$python" -c "$program") || true
echo "$out" | grep -qx "level 2" || fail "CUFILE_STATS has no say: $out"

# One that is loaded under its full name, as torch does it: programs that seek the library in
# /proc/self/maps take the first.
other=$(mktemp -d)
cp "$folder/libcufile.so.0" "$other/libcufile.so.0"
first=$("$run" "$python" -c 'import ctypes, sys
ctypes.CDLL(sys.argv[1])
files = [line.split()[-1] for line in open("/proc/self/maps") if "cufile" in line]
assert sys.argv[1] in files, files
print(files[0])' "$other/libcufile.so.0") || fail "another libcufile.so.0 was not loaded"
rm -r "$other"
[ "$(readlink -f "$first")" = "$(readlink -f "$folder/libcufile.so.0")" ] || fail "first: $first"

# Python finds the file that replaces safetensors, and goes on without the package gpunvme.
program='import os, sys
sys.stdout.write(os.environ["GPUNVME_SAFETENSORS"] + " " + sys.modules["sitecustomize"].__file__)'
for device in "" cuda:1; do
    out=$("$run" "--safetensors${device:+=$device}" "$python" -c "$program") || fail "--safetensors"
    [ "$out" = "${device:-cpu} $(readlink -f "$folder/python/sitecustomize.py")" ] ||
        fail "--safetensors: $out"
done

"$run" --help | grep -q "^Usage: gpunvme-run" || fail "--help"
for wrong in "" "--log" "--strange true" "--safetensors= true"; do
    # shellcheck disable=SC2086
    if "$run" $wrong >/dev/null 2>"${TMPDIR:-/tmp}/gpunvme-run-$$"; then
        fail "'$wrong' was taken"
    fi
    grep -q "^gpunvme-run: " "${TMPDIR:-/tmp}/gpunvme-run-$$" || fail "'$wrong': no word"
done
rm -f "${TMPDIR:-/tmp}/gpunvme-run-$$"
