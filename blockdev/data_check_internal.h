/* SPDX-License-Identifier: BSD-2-Clause */
/* Declarations shared by the tests of reads and of writes. */
#ifndef BLOCKDEV_DATA_CHECK_INTERNAL_H
#define BLOCKDEV_DATA_CHECK_INTERNAL_H

#include "blockdev/data_check.h"

/*
 * The shape of a command: its length in pages, and where its data lies in the
 * buffer: byte at_byte of page at_page.
 */
struct data_shape {
    size_t pages, at_page, at_byte;
};

/*
 * A part of the device, with the data that commands of single pages return or
 * shall leave.
 */
struct data_window {
    unsigned char *data;
    uint64_t start; /* byte of the device */
    size_t pages;
    size_t *marks; /* pages that are not uniform and differ from the previous one, ascending */
    size_t n_marks;
};

/* The device's own commands and their buffer; see data_check_device(). */
struct data_commands {
    struct bd_dev *dev;
    unsigned char *buffer; /* DATA_CHECK_BUFFER bytes */
    bool is_dma;           /* true if from bd_dma_alloc() */
};

/*
 * Returns the length in bytes of the longest command to try on a path whose
 * commands carry at most max_command bytes.
 */
size_t data_check_longest(size_t max_command);

/*
 * Reads the window, at most `pages` pages of it. Returns 0, or -errno; then
 * there is nothing to close.
 */
int data_window_open(struct bd_dev *dev, uint64_t start, size_t pages, struct data_window *out);
/* Frees the window's memory. */
void data_window_close(struct data_window *w);
/* Computes the marks again after the data has changed. */
void data_window_mark(struct data_window *w);
/*
 * Transfers the window by commands of single pages between the device and
 * `data`. Returns 0 or the first error. Pages after a failed one are still
 * transferred, but none after -ETIMEDOUT, because each attempt would wait for
 * its deadline.
 */
int data_window_move(struct bd_dev *dev, const struct data_window *w, enum bd_op op,
                     unsigned char *data);

typedef int (*data_shape_fn)(void *context, const struct data_shape *s);
/*
 * Calls fn for each shape of at most `longest` bytes until it fails. Returns
 * the last result.
 */
int data_each_shape(size_t longest, data_shape_fn fn, void *context);

/* Like data_check_run(), for a window that is already open. */
int data_check_reads(const struct data_check *check, const struct data_window *w, size_t lba_size,
                     char *why, size_t len);

/* Allocates the buffer. Returns 0 or -ENOMEM. */
int data_commands_open(struct bd_dev *dev, struct data_commands *out);
/* Frees the buffer. */
void data_commands_close(struct data_commands *c);
/* Returns the path of the device's own commands, for data_check_reads(). */
struct data_check data_commands_path(struct data_commands *c, uint64_t start, size_t max_command);
/*
 * Submits commands together and returns their first error, mapped by
 * data_check_error().
 */
int data_submit(struct bd_dev *dev, struct bd_io *ios, size_t n);

/*
 * Describe the failure of a transfer in a message: data_fails() followed by
 * data_cause().
 */
const char *data_fails(int err);
const char *data_cause(int err);

#endif
