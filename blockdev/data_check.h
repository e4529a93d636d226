/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Self-test of a controller: reads by commands of every shape (one page, two, PRP lists of any
 * length that begin anywhere in a page of a table), and lists of short reads where a path has them,
 * must return the data that reads of single pages return. It only reads, in a window of 4 MiB at
 * most, and takes some ten milliseconds where a controller moves gigabytes a second. Pages that
 * equal their neighbours show little, so the caller chooses a window whose pages differ.
 *
 * On a scratch area, which it overwrites and puts back, it makes pages that differ, and tests
 * writes, too.
 */
#ifndef BLOCKDEV_DATA_CHECK_H
#define BLOCKDEV_DATA_CHECK_H

#include "blockdev/bdev.h"
#include "support/page.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The longest command that is tried, bytes. */
#define DATA_CHECK_LONGEST (2u << 20)
/* Bytes of the buffer: a page of a PRP table describes its first half. */
#define DATA_CHECK_BUFFER (2u * DATA_CHECK_LONGEST + 2u * PAGE_BYTES)

/* Bytes of a window or scratch area at most. */
#define DATA_CHECK_WINDOW (2u * DATA_CHECK_LONGEST)

/* The most pieces of a list. */
#define DATA_CHECK_PIECES 256u

struct data_check_piece {
    uint64_t offset; /* of the device, a multiple of its LBA size, as is len */
    size_t at, len;  /* in the buffer; at: a multiple of 64 */
};

/* The error of a read that failed with err; status: the NVMe status of its command, 0: none. */
int data_check_error(int err, uint16_t status);

/* A path from the device to a buffer. Errors of its reads are those of data_check_error(). */
struct data_check {
    const char *path; /* its name, for the sentence */
    /* Reads [offset, offset + len) of the device to byte `at` of the buffer. 0 or -errno. */
    int (*read)(void *context, uint64_t offset, size_t at, size_t len);
    /* Reads n <= DATA_CHECK_PIECES pieces at once. NULL: the path has no lists. 0 or -errno. */
    int (*read_list)(void *context, const struct data_check_piece *pieces, size_t n);
    void *context;
    unsigned char *buffer; /* DATA_CHECK_BUFFER bytes; overwritten */
    size_t max_command;    /* bytes */
    uint64_t start;        /* of the window: byte of the device, a multiple of PAGE_BYTES */
};

/*
 * 0: all reads were right. -EILSEQ: one returned wrong data, or wrote outside its destination.
 * -EPROTO: the controller refuses a shape of command. Another error ends the test, too: it is that
 * of the read that failed, and may be the host's. why has a sentence, but not for -ENOMEM; after a
 * success only where the data of the device is such that the test shows little.
 */
int data_check_run(struct bd_dev *dev, const struct data_check *check, char *why, size_t len);
/*
 * Checks the commands of the device itself, into its DMA memory if it has such. lists: also short
 * reads, several at once. As above.
 */
int data_check_device(struct bd_dev *dev, uint64_t start, size_t max_command, bool lists, char *why,
                      size_t len);
/*
 * Checks reads, as data_check_device() does, and writes in the scratch area at `start`, a multiple
 * of PAGE_BYTES, of twice the longest command (DATA_CHECK_WINDOW at most). Its former content is
 * written back, also after a failure, and compared. No other program may use the device, and a
 * process that ends in between loses the content. interrupted() is asked between commands, and may
 * be NULL; true: the test ends, with -EINTR. -EINVAL: no such area, and -EROFS: nothing was
 * written; -EUCLEAN: the content could not be put back; and the errors of data_check_run().
 */
int data_check_scratch(struct bd_dev *dev, uint64_t start, size_t max_command,
                       bool (*interrupted)(void), char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
