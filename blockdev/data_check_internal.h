/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of reads and of writes share. */
#ifndef BLOCKDEV_DATA_CHECK_INTERNAL_H
#define BLOCKDEV_DATA_CHECK_INTERNAL_H

#include "blockdev/data_check.h"

/* A command of this many pages, to or from a byte of a page of the buffer. */
struct data_shape {
    size_t pages, at_page, at_byte;
};

/* A part of the device, as commands of single pages return it or shall leave it. */
struct data_window {
    unsigned char *data;
    uint64_t start; /* byte of the device */
    size_t pages;
    size_t *marks; /* pages that differ from the one before and are not uniform, ascending */
    size_t n_marks;
};

/* The device's own commands, and their buffer; see data_check_device(). */
struct data_commands {
    struct bd_dev *dev;
    unsigned char *buffer; /* DATA_CHECK_BUFFER bytes */
    bool is_dma;           /* of bd_dma_alloc() */
};

/* The longest command that is tried, of a path that carries max_command bytes. */
size_t data_check_longest(size_t max_command);

/* Reads the window, at most `pages` of it. 0, or -errno: nothing is to be closed then. */
int data_window_open(struct bd_dev *dev, uint64_t start, size_t pages, struct data_window *out);
void data_window_close(struct data_window *w);
/* Finds the marks anew, after its data was changed. */
void data_window_mark(struct data_window *w);
/*
 * Moves the window by commands of single pages, between the device and `data`. 0, or the first
 * error; pages behind those that failed are moved as well, but none after -ETIMEDOUT, whose
 * commands took the deadline.
 */
int data_window_move(struct bd_dev *dev, const struct data_window *w, enum bd_op op,
                     unsigned char *data);

typedef int (*data_shape_fn)(void *context, const struct data_shape *s);
/* Calls fn for each shape of at most `longest` bytes until it fails. The error of the last. */
int data_each_shape(size_t longest, data_shape_fn fn, void *context);

/* As data_check_run(), beside a window that is open. */
int data_check_reads(const struct data_check *check, const struct data_window *w, size_t lba_size,
                     char *why, size_t len);

/* 0 or -ENOMEM. */
int data_commands_open(struct bd_dev *dev, struct data_commands *out);
void data_commands_close(struct data_commands *c);
/* The path to the buffer, for data_check_reads(). */
struct data_check data_commands_path(struct data_commands *c, uint64_t start, size_t max_command);
/* The first error of commands that were submitted together, as data_check_error() has it. */
int data_submit(struct bd_dev *dev, struct bd_io *ios, size_t n);

/* What became of a transfer; followed by data_cause(). */
const char *data_fails(int err);
const char *data_cause(int err);

#endif
