/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests a controller. Reads by commands of every shape must return the same
 * data as reads of single pages. The shapes are one page, two pages, PRP lists
 * of any length that begin anywhere in a page of a table, and lists of short
 * reads if the path supports lists. The test only reads, in a window of at most
 * 4 MiB. It takes about ten milliseconds if the controller transfers gigabytes
 * a second. Pages that equal their neighbours reveal little, so the caller
 * chooses a window whose pages differ.
 *
 * On a scratch area the test fills pages with distinct data, tests writes as
 * well, and restores the former content.
 */
#ifndef BLOCKDEV_DATA_CHECK_H
#define BLOCKDEV_DATA_CHECK_H

#include <sys/cdefs.h>

#include "blockdev/bdev.h"
#include "support/page.h"
#include "support/reason.h"

__BEGIN_DECLS

/* The longest command that is tried, in bytes. */
#define DATA_CHECK_LONGEST (2u << 20)
/*
 * Size of the buffer in bytes: one page of a PRP table describes its first
 * half.
 */
#define DATA_CHECK_BUFFER (2u * DATA_CHECK_LONGEST + 2u * PAGE_BYTES)

/* Maximum number of pieces in a list. */
#define DATA_CHECK_PIECES 256u

struct data_check_piece {
    uint64_t offset; /* on the device; a multiple of its LBA size, as is len */
    size_t at, len;  /* place in the buffer; `at` is a multiple of 64 */
};

/*
 * Maps the error of a failed read: -EPROTO if `status`, the NVMe status of its
 * command (0 if none), says that the command is invalid; else err.
 */
int data_check_error(int err, uint16_t status);

/*
 * Describes a path by which the device reads to a buffer. Reads return errors
 * as converted by data_check_error().
 */
struct data_check {
    const char *path; /* name for messages */
    /*
     * Reads [offset, offset + len) of the device to byte `at` of the buffer.
     * Returns 0 or -errno.
     */
    int (*read)(void *context, uint64_t offset, size_t at, size_t len);
    /*
     * Reads n <= DATA_CHECK_PIECES pieces at once. Returns 0 or -errno. NULL means
     * that the path has no lists.
     */
    int (*read_list)(void *context, const struct data_check_piece *pieces, size_t n);
    void *context;
    unsigned char *buffer; /* DATA_CHECK_BUFFER bytes; overwritten */
    size_t max_command;    /* bytes */
    uint64_t start;        /* start of the window: byte of the device, a multiple of PAGE_BYTES */
};

/*
 * Runs the test. Returns 0 if all reads were right, -EILSEQ if one returned
 * wrong data or wrote outside its destination, and -EPROTO if the controller
 * refuses a shape of command. Any other error is that of the read that failed,
 * and may be the host's fault. On an error `why` holds a sentence, except for
 * -ENOMEM. On success it is empty unless the device's data makes the test weak.
 */
int data_check_run(struct bd_dev *dev, const struct data_check *check, struct reason *why);
/*
 * Like data_check_run(), with the device's own commands, into DMA memory if the
 * device has any. If `lists` is true, it also submits several short reads at
 * once.
 */
int data_check_device(struct bd_dev *dev, uint64_t start, size_t max_command, bool lists,
                      struct reason *why);
/*
 * Checks reads like data_check_device(), and writes, in the scratch area at
 * `start`, a multiple of PAGE_BYTES. The area is twice the longest command (at
 * most 2 * DATA_CHECK_LONGEST). The function then writes its former content back,
 * also after a failure, and compares it. No other program may use the device, and the content
 * is lost if the process dies in between. interrupted() may be NULL; it is
 * called between commands, and the test ends with -EINTR if it returns true.
 * Returns -EINVAL if there is no such area and -EROFS if the device is
 * read-only; neither writes anything. Returns -EUCLEAN if the content could not
 * be put back, else the errors of data_check_run().
 */
int data_check_scratch(struct bd_dev *dev, uint64_t start, size_t max_command,
                       bool (*interrupted)(void), struct reason *why);

__END_DECLS

#endif
