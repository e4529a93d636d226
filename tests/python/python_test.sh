#!/bin/bash
# pytest over the package. Ends with 77 where Python, pytest or numpy is missing.
#
# usage: python_test.sh PACKAGE LIBRARY MKFS DAEMON FAKE_CUDA
set -euo pipefail

python=${GPUNVME_TEST_PYTHON:-python3}
if ! "$python" -c 'import sys, pytest, numpy; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "skipped: $python is not Python 3.10 with pytest and numpy, see GPUNVME_TEST_PYTHON"
    exit 77
fi
cd "$1"
export PYTHONPATH=$1 GPUNVME_LIBRARY=$2 GPUNVME_MKFS=$3 GPUNVME_DAEMON=$4 GPUNVME_FAKE_CUDA=$5
exec "$python" -B -m pytest -q -rs -p no:cacheprovider tests
