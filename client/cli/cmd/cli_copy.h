/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares functions and structures that the commands on files share. They open
 * files, connect to a mount with a buffer, and describe the transfers of a
 * file.
 */
#ifndef CLIENT_CLI_CMD_CLI_COPY_H
#define CLIENT_CLI_CMD_CLI_COPY_H

#include <stdint.h>
#include <sys/stat.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/lib/connection.h"

struct cli_transfer {
    const char *file;
    uint64_t bytes;
    double seconds; /* of transfer calls, without checksums and copies */
    struct gpunvme_result result;
    uint64_t xxh3; /* with --checksum */
};

struct cli_session {
    struct cli_options options;
    struct connection *mount;
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *buffer;
    void *host; /* as large as the buffer, for hashing or as a source */
};

/* Opens a regular file to read it. Returns a descriptor, or -1 after a message. */
int cli_open_regular(const char *file, struct stat *st);
/* Returns 0, or 1 after a message if the file is the source of what will be written. */
int cli_check_target(int fd, const char *file, const struct stat *source);
int cli_truncate(int fd, const char *file);

/* Returns the size of the largest of n files, 0 if none can be asked. */
uint64_t cli_largest(char **files, int n);
/* Connects to the mount of `path`; the buffer has at most `wanted` bytes. */
int cli_session_open(struct cli_session *s, const char *path, uint64_t wanted);
void cli_session_close(struct cli_session *s);

/*
 * Opens the mount of the first file, and calls `one` for each file. `one` prints
 * an element of the list "files". Returns 0, or 1 if anything failed.
 */
int cli_each_file(const struct cli_options *options, char **files, int n,
                  int (*one)(struct cli_session *s, struct cli_out *out, const char *file));

/* Adds the result of one call to the totals of a file. */
void cli_account(struct cli_transfer *t, const struct gpunvme_result *r, uint64_t bytes,
                 double seconds);
/*
 * Reads a file of about `size` bytes to its end, through the buffer or by read(2), and adds to its
 * totals. Stores the XXH3 if `hashes` is true. Returns 0 or -errno; gpunvme_error() describes the
 * error.
 */
int cli_read_all(struct cli_session *s, int fd, uint64_t size, bool by_syscall, bool hashes,
                 struct cli_transfer *t);
/* Reports a file as one line of text or one element of a list in JSON. */
void cli_report(struct cli_out *out, const struct cli_session *s, const struct cli_transfer *t);

#endif
