/* SPDX-License-Identifier: BSD-2-Clause */
/* Tables give access to rows of files by number. */
#ifndef CLIENT_LIB_ROW_TABLE_H
#define CLIENT_LIB_ROW_TABLE_H

#include "client/device/gd_table_launch.h"
#include "client/lib/direct.h"
#include "client/lib/handle.h"

struct gpunvme_table {
    struct gpunvme *g;
    struct gpunvme_file **files; /* distinct files; each counts the table as a user */
    uint32_t max_rows;
    struct gd_row_table table;     /* with addresses of the memory space */
    struct memory_space space;     /* space of the leases; without leases that of this process */
    uint64_t workspace;            /* address of all arrays of the table in the memory space */
    uint64_t caches_at;            /* address of the struct gd_table_cache of each file */
    void *staging;                 /* NULL: none yet */
    bool staging_is_ordinary;      /* of malloc(), not registered */
    struct gpunvme_direct *direct; /* NULL: gathers read by READV */
    struct cuda_kernel kernel;     /* set on the direct path of a GPU */
    struct cuda_kernel few_kernel; /* the same; for gathers of few rows */
    bool has_begun;                /* the launches of the last gather were not all made */
    char why[200];                 /* why there is no direct path; "" if there is one */
    /*
     * Held while a thread gathers on the host or launches a gather. Protects
     * commands, table.caches, and the workspace of tables whose gathers are
     * synchronous.
     */
    pthread_mutex_t lock;
    uint64_t commands; /* sum over all READVs */
};

/*
 * Executes a pass of a gather, whose arrays are in memory of this process, on
 * the calling thread (row_table_host.c).
 */
void table_host_pass(const struct gd_table_launch *l);
/* Reads the pieces of a turn by READV, from number l->first on. */
void table_host_read(struct gpunvme_table *t, const struct gd_table_launch *l);
/*
 * Waits for the stream, then makes a gather whose arrays may be in GPU memory
 * by a function that takes host memory.
 */
typedef int (*table_host_fn)(struct gpunvme_table *t, struct gd_table_launch *l, void *stream);
int table_host_gather(struct gpunvme_table *t, struct gd_table_launch *l, void *stream,
                      table_host_fn gather);

#endif
