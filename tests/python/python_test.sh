#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# pytest over the package, by the first Python of $GPUNVME_TEST_PYTHON, python3 and the system's that
# has what the tests need. Ends with 77 where none has.
#
# usage: python_test.sh PACKAGE LIBRARY MKFS DAEMON FAKE_CUDA
set -euo pipefail

needs='import sys, pytest, numpy; sys.exit(sys.version_info < (3, 10))'
for python in "${GPUNVME_TEST_PYTHON:-python3}" python3 /usr/bin/python3 ""; do
    [ -z "$python" ] || ! "$python" -c "$needs" 2>/dev/null || break
done
if [ -z "$python" ]; then
    echo "skipped: no Python 3.10 with pytest and numpy here, see GPUNVME_TEST_PYTHON"
    exit 77
fi
cd "$1"
export PYTHONPATH=$1 GPUNVME_LIBRARY=$2 GPUNVME_MKFS=$3 GPUNVME_DAEMON=$4
run=("$python" -B -m pytest -q -rs -p no:cacheprovider tests)
# Apart from each other: torch takes a driver that is loaded for a real one, and crashes.
"${run[@]}"
GPUNVME_FAKE_CUDA=$5 "${run[@]}" -m driver
