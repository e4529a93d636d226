/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Block I/O by the GPU: NVMe queue pairs driven by a kernel, and the buffers
 * that they fill.
 *
 * One C API, two executors of the same queue protocol (gq_protocol.h): CUDA,
 * and host threads where no GPU is present. Functions return 0 or -errno; all
 * may be called from any thread. Counts are in bytes, LBAs are of the
 * namespace.
 */
#ifndef CUDA_GQ_H
#define CUDA_GQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/gq_copies.h"
#include "cuda/queue/gq_reads.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gq_executor_kind {
    GQ_EXECUTOR_AUTO = 0, /* CUDA when a device answers, else CPU */
    GQ_EXECUTOR_CUDA = 1,
    GQ_EXECUTOR_CPU = 2,
};

/* The side that stores to the controller's doorbells. */
enum gq_doorbells {
    GQ_DOORBELLS_AUTO = 0,   /* the executor, where it can reach them, else a CPU thread */
    GQ_DOORBELLS_CPU = 1,    /* tier 0: a CPU thread for the executor (gq_doorbell_proxy.h) */
    GQ_DOORBELLS_DIRECT = 2, /* only the executor: -ENOTSUP where it cannot */
};

/* Zero in a field means its default. */
struct gq_options {
    enum gq_executor_kind executor;
    enum gq_doorbells doorbells;
    int cuda_device;      /* ordinal */
    unsigned queues;      /* queue pairs to own: 43, fewer where the controller gives fewer */
    unsigned depth;       /* entries a queue: 1,024; 65 where data of device memory is staged */
    unsigned cpu_lanes;   /* CPU executor: lanes of a group, 1 or 32 (lockstep): 1 */
    unsigned cpu_threads; /* CPU executor: threads a transfer may use: 1 */
    unsigned deadline_ms; /* a command not completed after this is timed out: 10,000 */
    unsigned max_buffers; /* registered at once: 1024 */
    size_t staging;       /* bytes, for partial LBAs: 16 MiB; lanes have parts of their own */
    uint32_t max_command; /* bytes a command may carry: as many as the controller allows */
    /*
     * CPU executor: buffers stand in for device memory. They are offered to the
     * transport as such, which refuses them, and all data is staged.
     */
    bool cpu_device_memory;
    struct gq_copies *copies; /* hooks of a simulated drive; outlive the engine. NULL: hardware */
};

struct gq_info {
    enum gq_executor_kind executor;
    char device[128];   /* "NVIDIA H200", or "CPU executor, 32 lanes" */
    char fallback[128]; /* why CUDA was not taken under AUTO; empty when it was */
    /*
     * 0: as 1, but the CPU stores to the doorbells; 1: queues in pinned host
     * memory, where data of device memory is staged and copied by the executor;
     * 2: data in GPU memory, queues in host memory.
     */
    unsigned tier;
    char tier_note[256]; /* the reason for a lower tier; empty when there is none */
    unsigned queues, depth;
    uint32_t lba_size;
    uint32_t max_command; /* bytes one command carries at most */
    uint8_t gpu_uuid[16]; /* of the CUDA device; zero without one */
};

struct gq_stats {
    uint64_t transfers, commands, bytes_read, bytes_written;
    uint64_t staged_read, staged_written; /* bytes among these of staged buffers */
    uint64_t timeouts, errors, cancelled;
    /* Recovery: commands that an Abort ended, queue pairs recreated, resets of the controller. */
    uint64_t aborts, recreates, resets;
    uint64_t restarts;    /* times that a reset interrupted a transfer, which then went on */
    unsigned quarantined; /* queue pairs out of service now */
    unsigned buffers;     /* registered now */
};

/* A kernel this long past its deadline is regarded as hung. */
#define GQ_HANG_MS 15000u

struct gq_engine;
struct gq_buffer;

/*
 * Takes queue pairs of the controller for GPU use. The controller must outlive
 * the engine. -ENODEV: CUDA was requested and no device is usable (gq_probe
 * says why).
 */
int gq_engine_open(struct nvme_ctrlr *c, uint32_t nsid, const struct gq_options *opts,
                   struct gq_engine **out);
/* Waits for transfers (bounded by their deadlines), unregisters buffers, deletes the queues. */
void gq_engine_close(struct gq_engine *e);
void gq_engine_info(const struct gq_engine *e, struct gq_info *out);
/*
 * Before any transfer: gq_readv() gives part_sums from then on. Not where data is staged; a second
 * call does nothing. -ENOMEM, or an error of the executor, and the engine works on without.
 */
int gq_engine_sum_parts(struct gq_engine *e);
/* The namespace has become larger: extents may lie in its new part. Beside transfers. */
void gq_engine_grown(struct gq_engine *e, uint64_t bytes);
/* Where data is staged: numbers of queues that were measured to be the fastest; or "". */
void gq_engine_tuned(struct gq_engine *e, char *text, size_t len);
void gq_engine_stats(struct gq_engine *e, struct gq_stats *out);

struct gq_queue_stats {
    uint16_t qid;
    bool in_service;
    uint64_t commands; /* of transfers, since the engine was opened */
};
/* The queue pairs of the engine, at most max; returns how many. */
unsigned gq_engine_queues(struct gq_engine *e, struct gq_queue_stats *out, unsigned max);

/* 0 when a CUDA device is usable, or -ENODEV with a sentence in why. Safe without a driver. */
int gq_probe(int cuda_device, char *why, size_t len);

/* Kind of a buffer's memory. */
enum gq_mem_kind {
    GQ_MEM_HOST = 1,     /* this process's memory: addr. CPU executor only */
    GQ_MEM_FD = 2,       /* memfd or shared file mapping: fd (duplicated), offset. CUDA pins it */
    GQ_MEM_CUDA = 3,     /* device pointer of this process: addr. CUDA only */
    GQ_MEM_CUDA_IPC = 4, /* of another process: base handle, offset from the base. CUDA only */
};

struct gq_mem {
    enum gq_mem_kind kind;
    void *addr;
    int fd;
    uint64_t offset;       /* bytes from the start of fd, or from the IPC handle's base */
    uint64_t len;          /* bytes, > 0, any alignment */
    unsigned char ipc[64]; /* cudaIpcMemHandle_t */
    /*
     * Only for lists of gq_readv(): host memory (GQ_MEM_FD; with the CPU
     * executor also GQ_MEM_HOST) at a multiple of 8, which is not mapped for
     * the controller.
     */
    bool is_list;
    bool is_host; /* of the host in spite of gq_options.cpu_device_memory; GQ_MEM_FD, GQ_MEM_HOST */
    bool for_lease; /* staging of a lease: may take the regions that other buffers leave */
};

/*
 * Maps the memory for the controller and builds its PRP entries. The buffer
 * covers exactly [start, start + len) of the memory. The pages of memory that
 * is pinned (GQ_MEM_FD with CUDA) are allocated first, while transfers go on.
 * -EINVAL (empty, overflow, invalid handle, not usable as a list), -ENOTSUP
 * (kind not supported by this executor), -EMFILE (max_buffers), -ENOMEM,
 * -EFAULT (not inside the file).
 *
 * Memory that the transport refuses (-EFAULT of its map()) is registered without
 * a mapping. Commands of its transfers aim at the engine's staging. The executor
 * copies reads on into the buffer when their commands have succeeded, and fills
 * staging before it posts writes.
 */
int gq_buffer_register(struct gq_engine *e, const struct gq_mem *mem, struct gq_buffer **out);
/*
 * Ends the buffer: new transfers get -ESTALE; after the return no command can
 * reach the memory (queues with timed-out commands into it are recovered
 * first). Frees the object.
 */
void gq_buffer_unregister(struct gq_buffer *b);
/* The first byte of a list. The host may write to it at any time. */
void *gq_buffer_list(const struct gq_buffer *b);
/* False: the memory is not mapped for the controller; transfers are staged, leases cannot be. */
bool gq_buffer_is_reachable(const struct gq_buffer *b);
/*
 * The pages of a buffer in GPU memory, as the controller reaches them by the
 * hooks of gq_options.copies. -ENOTSUP: host memory, or unreachable.
 */
int gq_buffer_device(const struct gq_buffer *b, uint64_t *device, uint64_t *len);
/* The buffer as the controller addresses it, until it is unregistered (gq_region.h). */
struct gq_buffer_iova {
    uint64_t iova;  /* of the first page; the pages are contiguous */
    uint64_t prps;  /* of the table of PRP entries for the pages */
    uint64_t pages; /* of 4096 bytes */
    uint64_t head;  /* bytes from the first page to the buffer's first byte */
};
/* -ENOTSUP when the controller cannot reach the memory. */
int gq_buffer_iova(const struct gq_buffer *b, struct gq_buffer_iova *out);

enum gq_op { GQ_READ, GQ_WRITE };

/*
 * Told of the parts of a transfer, of some 64 MiB each, while the next parts are under way: for
 * work that would come before or after the whole transfer without it. Ranges are bytes of the
 * request, one after the other from 0 on. The functions are called by the thread of the transfer,
 * which holds queues: they wait for nothing that another transfer may hold, and send the controller
 * no commands, because a reset of the controller waits for this thread.
 */
struct gq_listener {
    /* Or NULL. Before the commands of a part are posted; after a reset again for an earlier one. */
    void (*begins)(struct gq_listener *l, uint64_t from, uint64_t to);
    /* The part was moved, and bytes read are visible. Not where data is staged. */
    void (*ended)(struct gq_listener *l, uint64_t from, uint64_t to);
};

/*
 * Moves file bytes [file_offset, file_offset + len) to or from buffer bytes
 * [buffer_offset, buffer_offset + len). Extents are whole LBAs. GQ_WRITE: no
 * zero extents, and file_offset, counted from the first extent, and len are
 * whole LBAs (-EINVAL).
 */
struct gq_request {
    enum gq_op op;
    struct gq_buffer *buffer;
    uint64_t buffer_offset, file_offset, len;
    const struct gq_file_extent *extents; /* ascending, without gaps; the last one reaches `end` */
    size_t n_extents;
    uint64_t end;                    /* in the file, bytes */
    unsigned deadline_ms;            /* for the whole transfer; 0: none beyond the engine's */
    const volatile uint32_t *cancel; /* not 0: post no more, drain, return; NULL: never */
    struct gq_listener *listener;    /* or NULL */
};

struct gq_result {
    uint64_t bytes;       /* contiguous from the start that were certainly moved */
    uint64_t commands;    /* NVMe commands sent */
    uint16_t nvme_status; /* first error in stream order, 0 for none */
    bool timed_out, cancelled;
    bool staged;    /* the controller does not reach the buffer: all bytes went through staging */
    bool partial;   /* this and the next of gq_readv() */
    uint64_t taken; /* bytes */
    /*
     * Commands may still be under way, and move data until gq_engine_recover() has returned 0.
     * Where the controller has failed for good, they do not reach the buffer any more.
     */
    bool unsettled;
};

/*
 * Moves the bytes: 0; -EIO with nvme_status, or without one when the controller
 * or the executor has failed for good; -ETIMEDOUT; -ECANCELED; -ESTALE;
 * -EINVAL; -ENODEV when every queue is quarantined. result is filled in all
 * cases. On return 0 the bytes are visible to later work on the device, and to
 * the host for host memory.
 *
 * It ends within the request's deadline, or, without one, when a command has
 * not completed within the engine's, either plus an eighth of the latter. The
 * time of a controller reset (nvme_ctrlr_reset_ms) counts only for the
 * request's deadline, and the transfer waits for its end. A GPU whose kernel
 * does not end is given up after another GQ_HANG_MS.
 *
 * A simulated controller copies by work of its own on the device while the
 * transfer's kernel runs. CUDA calls of the same process that wait for running
 * kernels (cudaFree, cudaDeviceSynchronize) may delay that work until the
 * transfer's deadlines pass.
 */
int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result);

/*
 * Many reads of one file at once, into one buffer, from a list that the
 * executor reads and answers in place (struct gq_read_desc: `at` counts from
 * the buffer's first byte). Other threads may write to the list meanwhile: a
 * piece is read as it was or as it is, inside the buffer in either case, and
 * each result is the last value stored.
 *
 * A long list is read by several runs in sequence, of about 1 GiB or 1,048,576
 * pieces each, estimated from samples: a thread that waits for runs to end
 * waits for one of them.
 */
struct gq_readv {
    struct gq_buffer *buffer;
    const struct gq_file_extent *extents; /* ascending; the last one reaches `end` */
    size_t n_extents;
    uint64_t end;           /* of the file, bytes, */
    bool goes_on;           /* or of the mapped part of the file */
    struct gq_buffer *list; /* registered with is_list; pieces [first, first + n) of it */
    uint64_t first, n;
    uint64_t most;     /* bytes, not 0; see below */
    uint64_t odd_most; /* bytes of a piece; see below */
    /*
     * NULL, or two words for each piece, which are 0 before: the checksums of the blocks of
     * GQ_SUM_BYTES bytes of the file that the piece has in part, which are then read whole. The
     * first is of the block in which the piece begins, if not at its start; the second of the one
     * in which it ends, if it is another one. A checksum of 0 is ~0; a word stays 0 where none was
     * computed: holes, staged buffers, an engine without gq_engine_sum_parts(), errors.
     */
    uint32_t *part_sums;
    unsigned deadline_ms;            /* as in gq_request */
    const volatile uint32_t *cancel; /* as in gq_request */
};
#define GQ_READV_EXTENTS 65536u     /* of a map at most */
#define GQ_READV_PIECES  (1u << 28) /* of a list in one call */

/*
 * 0 when every piece has a result: its bytes, short only at the end of the
 * file, or
 *
 *   -EIO        the drive has returned an error
 *   -EAGAIN     left to the caller: more than odd_most bytes, which would take
 *               one command for each LBA, because file offset and address differ
 *               modulo 4; or beyond INT64_MAX in the file
 *   -EINVAL, -EFAULT   2^31 bytes or more, not inside the buffer
 *   -E2BIG      not begun, because one queue, or all queues in earlier runs, had
 *               begun pieces of more than `most` bytes. A list of that many bytes
 *               is read whole; of a longer one each queue reads at most that
 *               much, plus pieces begun within half a millisecond
 *
 * With a part of a file (goes_on, or the first extent is not at 0) pieces
 * outside the part and pieces that the run has not begun keep their results;
 * bytes and `partial` count only the run.
 *
 * result->bytes: of the pieces that have bytes; result->taken: of all pieces
 * that were begun. partial: some pieces have an error. With an error of the
 * call and without partial, the list is unchanged.
 *
 * -E2BIG: more than GQ_READV_EXTENTS extents or GQ_READV_PIECES pieces;
 * -EINVAL: the map is not of this namespace, no list, or not inside it;
 * -ENOTSUP: the controller cannot reach the buffer. Otherwise as gq_transfer():
 * then results of pieces that ended are valid; the remaining pieces have
 * -ECANCELED, -ETIMEDOUT or -ESTALE (interrupted by a reset, and no queue was
 * left to begin again).
 */
int gq_readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result);

/* Copies between the buffer and host memory, for the bounce path. -EINVAL past the buffer's end. */
int gq_buffer_put(struct gq_buffer *b, uint64_t offset, const void *src, size_t len);
int gq_buffer_get(struct gq_buffer *b, uint64_t offset, void *dst, size_t len);

#define GQ_SUM_BYTES 4096u
/*
 * The CRC-32C (Castagnoli; initial value and final complement of all ones) of n
 * parts of GQ_SUM_BYTES bytes, which begin at the offsets at[] of the buffer.
 * The executor computes them where the data is. Calls of several threads take
 * turns. -EINVAL past the buffer's end; -EIO when the executor has failed.
 */
int gq_buffer_sums(struct gq_buffer *b, const uint64_t *at, size_t n, uint32_t *sums);
/* The same of n parts one after the other, from this offset on. */
int gq_buffer_range_sums(struct gq_buffer *b, uint64_t offset, size_t n, uint32_t *sums);

/*
 * Returns quarantined queues to service: aborts their commands, else deletes
 * and creates them again, else resets the controller (nvme.h), which interrupts
 * other transfers: they begin again by themselves. 0: no command of a transfer
 * that has returned is under way. Otherwise the controller has failed for good:
 * -EIO, then and from then on; commands that were under way may still move data
 * unless nvme_ctrlr_settled().
 *
 * Takes at most GQ_ABORT_MS a queue, two admin deadlines (a command that misses
 * one ends the admin queue, and the next step is the reset) and
 * nvme_ctrlr_reset_ms(), times three where a controller works after a reset but
 * refuses a queue.
 */
#define GQ_ABORT_MS 1000u
int gq_engine_recover(struct gq_engine *e);

#ifdef __cplusplus
}
#endif

#endif
