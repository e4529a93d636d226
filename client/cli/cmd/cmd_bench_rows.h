/* SPDX-License-Identifier: BSD-2-Clause */
/* Rows of a file by several ways: gpunvme bench --rows. */
#ifndef CLIENT_CLI_CMD_CMD_BENCH_ROWS_H
#define CLIENT_CLI_CMD_CMD_BENCH_ROWS_H

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"

/* Measures rows of `row` bytes, and reports them as an element of a list. Returns 0 or 1. */
int cli_bench_rows(size_t row, struct cli_out *out, const char *file);

#endif
