/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The queue code over a simulated drive in one process, with something on the drive that verifies
 * itself, and what to compare a read with.
 */
#ifndef BENCH_LIB_GQ_STACK_H
#define BENCH_LIB_GQ_STACK_H

#include "bench/lib/bench_report.h"
#include "bench/lib/memory.h"
#include "cuda/gq.h"
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/sim.h"

#define GQ_STACK_LBA     4096u
#define GQ_STACK_READERS 16u

struct gq_stack {
    const char *who; /* for messages */
    uint64_t size;   /* bytes of media and memory, whole MiB */
    uint32_t lba;    /* bytes; 0: GQ_STACK_LBA */
    unsigned batch;  /* extents of the map of one gq_readv() of all pieces; 0: gq_transfer() */
    unsigned sim_threads;
    unsigned readers; /* threads that read a part each, at most GQ_STACK_READERS; 0: one */
    uint64_t seed;
    struct gq_options opts;

    struct sim *sim;
    struct sim_cuda_dma *gpu;
    struct nvme_ctrlr *ctrlr;
    struct gq_engine *engine;
    struct gq_info info;
    bool is_cuda;
    struct bench_memory memory;
    struct gq_buffer *buffer;
    void *source; /* of plain copies and gathers: the pattern, pinned where there is a GPU */
    uint64_t source_len;
};

/*
 * Opens what the fields up to `opts` say, and fills the media. 0 or -errno, reported on stderr;
 * either way gq_stack_close() ends it.
 */
int gq_stack_open(struct gq_stack *s);
/* Another engine with s->opts, on the same media. */
int gq_stack_reopen(struct gq_stack *s);
void gq_stack_close(struct gq_stack *s);

struct gq_figures {
    struct bench_samples reads, copies, gathers; /* GB/s */
    uint64_t commands;                           /* of a read */
};

/*
 * Reads all: pieces of `piece` bytes at random places, or in order, where `piece` (0: any) is only
 * that of the gather. In turn with a plain copy and a bare gather of the same pieces. Every byte is
 * verified, over poison, after each read and gather; the first round warms up. `piece` must divide
 * the size.
 */
int gq_stack_measure(struct gq_stack *s, uint64_t piece, bool random, unsigned repeats,
                     struct gq_figures *out);

/* "cpu", "cuda", "auto": -EINVAL for any other name. */
int gq_stack_executor(struct gq_options *opts, const char *name);

#endif
