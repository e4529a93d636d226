/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The path of transfers, chosen by measurement: that of the mount's GPU or the bounce pipeline.
 *
 * Transfers are measured by classes: reads or writes, of about one length, with or without the
 * page cache. Those of a class come in phases. A regular phase takes the choice; now and then a
 * phase is a trial of the other path. The mean of a phase counts: of reads that the kernel reads
 * ahead for, many are fast and a few slow. The first transfers after a change of path do not count:
 * kernels, and read-ahead, start anew. Of the last two phases of a path the faster one counts,
 * because disturbances only slow down.
 *
 * Trials may lose a fiftieth of the time. Regular phases add to an allowance and trials take from
 * it: a trial begins when the allowance covers its likely loss. It ends without a result when the
 * allowance is used up, and the next one waits for twice as much: a path may be slow at first only.
 *
 * Any thread may ask and add at any time, and none waits: a transfer that ends while another thread
 * adds one of its class is not counted.
 */
#ifndef CLIENT_LIB_PATH_CHOICE_H
#define CLIENT_LIB_PATH_CHOICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lengths: below 4 KiB, then each power of two up to 2 MiB, to less than twice as much. */
#define PATH_CHOICE_LENGTHS 11u
/* Numbers of pieces of a list: each power of two up to 64, to less than twice as many. */
#define PATH_CHOICE_COUNTS 7u

/* Of one class of transfers. */
struct path_choice {
    _Atomic uint32_t phase; /* as path_choice_ask() */
    _Atomic bool adding;    /* a thread adds a transfer, and has the rest for itself */
    uint32_t length;        /* transfers of a phase that count */
    uint32_t ended;         /* transfers since the path changed */
    uint32_t counted;       /* of those, in this phase */
    uint64_t ns;            /* of those counted */
    uint64_t means[2][2];   /* of the last two phases of [bounce], ns; 0: none */
    int64_t allowance;      /* ns */
    uint32_t failed;        /* trials without a result since the last one with a result */
};

struct path_choices {
    struct path_choice single[2][2][PATH_CHOICE_LENGTHS]; /* [write][direct] */
    struct path_choice lists[2][PATH_CHOICE_COUNTS][PATH_CHOICE_LENGTHS];
};

/* Nothing is measured. No transfer may be under way. */
void path_choices_init(struct path_choices *all);
/* The class of a read or write; NULL: it is not measured. direct: open with O_DIRECT. */
struct path_choice *path_choice_of(struct path_choices *all, bool write, bool direct, uint64_t len);
/* The class of a list of reads, `bytes` together. */
struct path_choice *path_choice_of_list(struct path_choices *all, bool direct, size_t pieces,
                                        uint64_t bytes);

/* A class whose phases have so many transfers, at first with this path. */
void path_choice_init(struct path_choice *c, bool bounces, uint32_t length);
/* For one transfer: the phase that it belongs to, which says its path. */
uint32_t path_choice_ask(const struct path_choice *c);
bool path_choice_bounces(uint32_t phase);
bool path_choice_is_trial(uint32_t phase);
/* Both paths have been measured before this phase. */
bool path_choice_is_measured(uint32_t phase);
/* A transfer of that phase took so long. */
void path_choice_add(struct path_choice *c, uint32_t phase, uint64_t ns);

#endif
