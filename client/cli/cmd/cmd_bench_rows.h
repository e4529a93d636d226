/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme bench --rows` reads rows of a file in several ways. */
#ifndef CLIENT_CLI_CMD_CMD_BENCH_ROWS_H
#define CLIENT_CLI_CMD_CMD_BENCH_ROWS_H

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"

/*
 * Measures reads of rows of `row` bytes, and prints the results as an element
 * of a list. Returns 0 or 1.
 */
int cli_bench_rows(size_t row, struct cli_out *out, const char *file);

#endif
