/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records by kind and number. A catalogue, a JSON file beside the data, says where the records of a
 * kind are:
 *
 *     {"version": 1,
 *      "kinds": {"image": {"file": "images.bin", "offset": 4096, "size": 12288, "count": 50000}}}
 *
 * file is relative to the catalogue's folder, offset the first byte of the first record, size a
 * record's bytes, count how many records follow one another. Errors are those of gpunvme_io.h, and
 * -ERANGE for a record that the kind does not have.
 */
#ifndef GPUNVME_RECORDS_H
#define GPUNVME_RECORDS_H

#include "gpunvme_io.h" /* beside this file also where it is installed */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Records of one size, one behind the other. */
struct gpunvme_records {
    struct gpunvme_io_file *file;
    uint64_t offset; /* of the first one in the file */
    uint64_t count;
    uint32_t size; /* of one, at least 1 */
};

/*
 * Records of these numbers, in this order, to addr and behind: n * size bytes. index is memory of
 * the host or of a GPU, ready when the call is made. All go in as few calls of the mount as
 * gpunvme_io_readv() makes. result may be NULL.
 */
int gpunvme_records_gather(const struct gpunvme_records *r, const int64_t *index, size_t n,
                           void *addr, struct gpunvme_result *result);
/* Records [first, first + n) to addr, in one read. */
int gpunvme_records_read(const struct gpunvme_records *r, uint64_t first, size_t n, void *addr,
                         struct gpunvme_result *result);

struct gpunvme_catalogue;

/* Opens the catalogue and its files. -EINVAL: it is not as above; gpunvme_error() says where. */
int gpunvme_catalogue_open(struct gpunvme_io *io, const char *path, struct gpunvme_catalogue **out);
/* No read may be under way. NULL does nothing. */
void gpunvme_catalogue_close(struct gpunvme_catalogue *c);
/* -ENOENT: it has no such kind. *out is good as long as the catalogue. */
int gpunvme_catalogue_find(const struct gpunvme_catalogue *c, const char *kind,
                           struct gpunvme_records *out);
/* The kinds' names, in the order of the file; NULL from their number on. */
const char *gpunvme_catalogue_kind(const struct gpunvme_catalogue *c, size_t i);
/* count records of the kind from number index on, to ptr. */
int gpunvme_read_kind(const struct gpunvme_catalogue *c, const char *kind, uint64_t index,
                      size_t count, void *ptr);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
