/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares block I/O by the GPU: NVMe queue pairs driven by a kernel, and the
 * buffers that they fill.
 *
 * One C API has two executors of the same queue protocol (gq_protocol.h): CUDA,
 * and host threads if there is no GPU. Functions return 0 or -errno, and any
 * thread may call them. Sizes are in bytes; LBAs are those of the namespace.
 */
#ifndef CUDA_GQ_H
#define CUDA_GQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/nvme/nvme.h"
#include "cuda/queue/gq_reads.h"
#include "support/reason.h"

__BEGIN_DECLS

enum gq_executor_kind {
    GQ_EXECUTOR_AUTO = 0, /* CUDA if a device responds, else CPU */
    GQ_EXECUTOR_CUDA = 1,
    GQ_EXECUTOR_CPU = 2,
};

/* Names the side that stores to the controller's doorbells. */
enum gq_doorbells {
    GQ_DOORBELLS_AUTO = 0,   /* the executor if it can reach them, else a CPU thread */
    GQ_DOORBELLS_CPU = 1,    /* tier 0: a CPU thread for the executor (gq_doorbell_proxy.h) */
    GQ_DOORBELLS_DIRECT = 2, /* only the executor; -ENOTSUP if it cannot */
};

/* Selects a policy for the controller's DMA to device memory. */
enum gq_p2p {
    GQ_P2P_AUTO = 0, /* where a provider of device memory serves (device_mem.h) */
    GQ_P2P_OFF = 1,  /* data of device memory is staged */
    /* Device memory that the controller does not reach is refused. */
    GQ_P2P_REQUIRE = 2,
};

#define GQ_CPU_MEMORIES 4u

struct bd_dev;

/* A field that is zero selects its default, given after the colon. */
struct gq_options {
    enum gq_executor_kind executor;
    enum gq_doorbells doorbells;
    int device;           /* ordinal of CUDA, or number of the CPU executor: 0 */
    unsigned queues;      /* queue pairs: 43, or fewer if the controller grants fewer */
    unsigned depth;       /* entries per queue: 1,024; 65 if data of device memory is staged */
    unsigned cpu_lanes;   /* CPU executor: lanes per group, 1 or 32 (lockstep): 1 */
    unsigned cpu_threads; /* CPU executor: maximum threads per transfer: 1 */
    unsigned deadline_ms; /* after this time a command is timed out: 10,000 */
    unsigned max_buffers; /* maximum registered at once: 1024 */
    uint32_t max_command; /* maximum bytes per command: the controller's limit */
    uint64_t part;        /* bytes of a part (struct gq_listener): 64 MiB */
    /*
     * CPU executor: buffers act as device memory. They are offered to the transport
     * as such, which refuses them, so all data is staged.
     */
    bool cpu_device_memory;
    enum gq_p2p p2p;
    /*
     * Open handles of memory of other devices, in which buffers of
     * GQ_MEM_DEVICE may lie; CPU executor only. The caller owns them and keeps
     * them open.
     */
    int cpu_memories[GQ_CPU_MEMORIES];
    unsigned n_cpu_memories;
    /*
     * A device of the controller that lends its only queue pair for each run
     * (bd_lend.h) and outlives the engine; NULL: the engine creates its own
     * pairs. There is then one queue, and a CPU thread stores to the doorbells,
     * so that a kernel that does not end cannot ring the device's queues;
     * GQ_DOORBELLS_DIRECT returns -ENOTSUP.
     */
    struct bd_dev *lender;
};

struct gq_info {
    enum gq_executor_kind executor;
    char device[128];       /* "NVIDIA H200", or "CPU executor, 32 lanes" */
    struct reason fallback; /* why AUTO did not select CUDA; empty if it did */
    /*
     * 0: like 1, but the CPU stores to the doorbells. 1: queues are in pinned host
     * memory; data of device memory is staged there, and the executor copies it. 2:
     * data is in GPU memory, queues are in host memory.
     */
    unsigned tier;
    char tier_note[256]; /* the reason for a lower tier, or the provider of device memory */
    bool reaches;        /* the controller reaches device memory, so its data is not staged */
    /* Tier of queues that another process drives: 1 if it may not use the addresses of tier 2. */
    unsigned lease_tier;
    unsigned queues, depth;
    uint32_t lba_size;
    uint32_t max_command; /* maximum bytes per command */
    uint8_t gpu_uuid[16]; /* of the CUDA device; the CPU executor's number is the last byte */
};

struct gq_stats {
    uint64_t transfers, commands, bytes_read, bytes_written;
    uint64_t staged_read, staged_written; /* the part of these bytes of staged buffers */
    uint64_t timeouts, errors, cancelled;
    /*
     * These count commands ended by an Abort, queue pairs recreated, and resets
     * of the controller.
     */
    uint64_t aborts, recreates, resets;
    uint64_t restarts;    /* transfers that a reset interrupted and that then continued */
    unsigned quarantined; /* queue pairs currently out of service */
    unsigned buffers;     /* currently registered */
    bool lost;            /* the executor has failed: nothing is transferred any more */
};

/* A kernel that exceeds its deadline by this time counts as hung. */
#define GQ_HANG_MS 15000u

struct gq_engine;
struct gq_buffer;

/*
 * Takes queue pairs of the controller for the GPU. The controller must outlive
 * the engine. Returns -ENODEV if CUDA was requested and no device is usable
 * (gq_probe() returns the reason).
 */
int gq_engine_open(struct nvme_ctrlr *c, uint32_t nsid, const struct gq_options *opts,
                   struct gq_engine **out);
/*
 * Waits for transfers (bounded by their deadlines), unregisters buffers and
 * deletes the queues.
 */
void gq_engine_close(struct gq_engine *e);
void gq_engine_info(const struct gq_engine *e, struct gq_info *out);
/*
 * Makes gq_readv() fill in part_sums from now on. Must be called before any
 * transfer; a second call does nothing, nor does a call if data is staged. On
 * an error (-ENOMEM, or the executor's) the engine works without part_sums.
 */
int gq_engine_sum_parts(struct gq_engine *e);
/*
 * Tells the engine that the namespace has grown to `bytes`, so extents may lie
 * in its new part. Transfers may be running.
 */
void gq_engine_grown(struct gq_engine *e, uint64_t bytes);
void gq_engine_stats(struct gq_engine *e, struct gq_stats *out);

/* Holds the counters of one queue pair. */
struct gq_queue_stats {
    uint16_t qid;
    bool in_service;
    uint64_t commands; /* commands of transfers since the engine was opened */
};
/* Stores up to max queue pairs of the engine and returns how many. */
unsigned gq_engine_queues(struct gq_engine *e, struct gq_queue_stats *out, unsigned max);

/*
 * Returns 0 if a CUDA device is usable, or -ENODEV with a sentence in `why`.
 * Also works without a driver.
 */
int gq_probe(int cuda_device, struct reason *why);

/* A CUDA device that this process sees; its ordinal is its index. */
struct gq_device {
    uint8_t uuid[16];
    char name[64];
    char bus_id[16]; /* PCI address, "" without one */
};
/*
 * Stores up to max devices and returns how many. Returns 0 without a driver.
 * Creates no context.
 */
unsigned gq_devices(struct gq_device *out, unsigned max);

/* Names the kinds of a buffer's memory. */
enum gq_mem_kind {
    GQ_MEM_HOST = 1,     /* memory of this process at addr; CPU executor only */
    GQ_MEM_FD = 2,       /* memfd or shared file: fd (duplicated), offset; CUDA pins it */
    GQ_MEM_CUDA = 3,     /* device pointer of this process in addr; CUDA only */
    GQ_MEM_CUDA_IPC = 4, /* another process's base handle, and offset from the base; CUDA only */
    GQ_MEM_DEVICE = 5,   /* a handle of cpu_memories: fd (duplicated), offset; CPU executor only */
    /*
     * Segments that follow one another in the owner's address space, and offset
     * from the first one. CUDA: memory of cuMemCreate(), by its exported handles.
     * CPU executor: parts of cpu_memories.
     */
    GQ_MEM_SEGMENTS = 6,
};

/*
 * Describes a segment of device memory. Its length and offset are multiples of
 * 4 KiB.
 */
struct gq_segment {
    int fd;          /* CUDA: of cuMemExportToShareableHandle(); otherwise of cpu_memories */
    int exported;    /* CUDA: a dma-buf of the whole segment, or -1 */
    uint64_t offset; /* bytes from the start of the handle; CUDA: 0 */
    uint64_t len;    /* bytes; CUDA: those of the allocation */
};
#define GQ_SEGMENTS 126u

struct gq_mem {
    enum gq_mem_kind kind;
    void *addr;
    /*
     * GQ_MEM_CUDA_IPC: a dma-buf of the 4 KiB pages around the buffer, or -1. The
     * base of the allocation is then at a multiple of 4 KiB.
     */
    int fd;
    uint64_t offset;       /* bytes from the start of fd or of the IPC handle's base */
    uint64_t len;          /* bytes, > 0, any alignment */
    unsigned char ipc[64]; /* cudaIpcMemHandle_t */
    /* GQ_MEM_SEGMENTS: at most GQ_SEGMENTS, whose descriptors are duplicated. */
    const struct gq_segment *segments;
    unsigned n_segments;
    /*
     * Only for lists of gq_readv(): host memory (GQ_MEM_FD; with the CPU executor
     * also GQ_MEM_HOST) at a multiple of 8. It is not mapped for the controller.
     */
    bool is_list;
    bool is_host;   /* host memory despite gq_options.cpu_device_memory; GQ_MEM_FD, GQ_MEM_HOST */
    bool for_lease; /* staging of a lease: may use the regions that other buffers must leave free */
};

/*
 * Maps the memory for the controller and builds its PRP entries. The buffer
 * covers exactly [start, start + len) of the memory. If the memory will be
 * pinned (GQ_MEM_FD with CUDA), its pages are allocated first, while transfers
 * continue. Returns -EINVAL (empty, overflow, invalid handle, unusable as a
 * list), -ENOTSUP (kind not supported by this executor), -EMFILE (max_buffers),
 * -ENOMEM, and -EFAULT (not inside the file).
 *
 * Memory that the transport refuses (-EFAULT or -ENOSPC of its map()) is
 * registered without a mapping; but with GQ_P2P_REQUIRE device memory is
 * refused (-ENOTSUP or -ENOSPC). Commands of its transfers use the engine's staging. The
 * executor copies reads into the buffer after their commands have succeeded,
 * and fills staging before it posts writes.
 */
int gq_buffer_register(struct gq_engine *e, const struct gq_mem *mem, struct gq_buffer **out);
/*
 * Ends the buffer: new transfers return -ESTALE. On return no command can reach
 * the memory; queues with timed-out commands into it are recovered first. Frees
 * the object. If a controller in software does not unmap the memory in time,
 * the engine keeps the import until gq_engine_free_late().
 */
void gq_buffer_unregister(struct gq_buffer *b);
/*
 * Frees the imports that gq_buffer_unregister() has kept if the controller has
 * unmapped them since (nvme_dma_unmap_late()). Waits for runs only if there are
 * such imports. A daemon calls it now and then.
 */
void gq_engine_free_late(struct gq_engine *e);
/*
 * Ends the controller's access to buffers whose memory has left the machine
 * with its device, and returns how many these were. Their transfers return
 * -ESTALE from the event on. Commands of leases are refused by the IOMMU from
 * this call on. A daemon calls it about once a second.
 */
unsigned gq_engine_revoke_gone(struct gq_engine *e);
/* Returns the first byte of a list. The host may write to it at any time. */
void *gq_buffer_list(const struct gq_buffer *b);
/*
 * Returns false if the memory is not mapped for the controller. Transfers are
 * then staged, and leases are not possible.
 */
bool gq_buffer_is_reachable(const struct gq_buffer *b);
/*
 * Holds the buffer's addresses for the controller, valid until it is
 * unregistered (engine/gq_internal.h).
 */
struct gq_buffer_iova {
    uint64_t iova;  /* IOVA of the first page; the pages are contiguous */
    uint64_t prps;  /* IOVA of the table of PRP entries for the pages */
    uint64_t pages; /* number of pages of 4096 bytes */
    uint64_t head;  /* bytes from the first page to the buffer's first byte */
};
/*
 * Stores the addresses for commands of another process. Returns -ENOTSUP if the
 * controller cannot reach the memory, or reaches it only by copies of this
 * process (nvme_transport.copies_device_memory).
 */
int gq_buffer_iova(const struct gq_buffer *b, struct gq_buffer_iova *out);

enum gq_op { GQ_READ, GQ_WRITE };

/*
 * Callbacks for the parts of a transfer (gq_options.part), while the next part is
 * in flight. They allow work that would otherwise come before or
 * after the whole transfer. A part ends at byte `to` of the request, where the
 * next one starts. The thread of the transfer calls the functions while it holds queues. So
 * they must not wait for anything that another transfer may hold, and must not
 * send commands to the controller, because a reset of the controller waits for
 * this thread.
 */
struct gq_listener {
    /*
     * May be NULL. Called before the commands of a part are posted; after a reset
     * again for the rest of that part.
     */
    void (*begins)(struct gq_listener *l, uint64_t to);
    /*
     * The part was transferred, and bytes read are visible. A reset ends a part
     * where it interrupts it.
     */
    void (*ended)(struct gq_listener *l, uint64_t to);
};

/*
 * Transfers file bytes [file_offset, file_offset + len) to or from buffer bytes
 * [buffer_offset, buffer_offset + len). Extents are whole LBAs. For GQ_WRITE
 * there are no zero extents, and len, file_offset and the offset of the first
 * extent are multiples of an LBA (-EINVAL).
 */
struct gq_request {
    enum gq_op op;
    struct gq_buffer *buffer;
    uint64_t buffer_offset, file_offset, len;
    const struct gq_file_extent *extents; /* ascending, contiguous; the last one ends at `end` */
    size_t n_extents;
    uint64_t end;                    /* end of the extents in the file, bytes */
    unsigned deadline_ms;            /* limit of the whole transfer; 0: only the engine's */
    const volatile uint32_t *cancel; /* nonzero stops posting, drains and returns; NULL: never */
    struct gq_listener *listener;    /* may be NULL */
};

struct gq_result {
    uint64_t bytes;       /* contiguous from the start, certainly transferred */
    uint64_t commands;    /* NVMe commands sent */
    uint16_t nvme_status; /* first error in stream order, 0 for none */
    bool timed_out, cancelled;
    bool staged;    /* the controller does not reach the buffer, so all bytes were staged */
    bool partial;   /* set by gq_readv(), like the next one */
    uint64_t taken; /* bytes */
    /*
     * True if commands may still be in flight and transfer data until
     * gq_engine_recover() has returned 0. If the controller has failed for good,
     * they cannot reach the buffer.
     */
    bool unsettled;
};

/*
 * Transfers the bytes. Returns 0; -EIO with nvme_status, or without one if the
 * controller or the executor has failed for good; -ETIMEDOUT; -ECANCELED;
 * -ESTALE; -EINVAL; or -ENODEV if every queue is quarantined. result is always
 * filled in. After a return of 0 the bytes are visible to later work on the
 * device, and to the host for host memory.
 *
 * The transfer ends within the request's deadline; without one, it ends when a
 * command has not completed within the engine's deadline. An eighth of the
 * engine's deadline may be added to either. The time of a controller reset
 * (nvme_ctrlr_reset_ms) counts only for the request's deadline, and the
 * transfer waits for the end of the reset. A GPU whose kernel does not end is
 * abandoned after another GQ_HANG_MS.
 *
 * A controller that copies to GPU memory (nvme_transport.copies_device_memory)
 * launches work on the device while the transfer's kernel runs. CUDA calls of
 * the same process that wait for running kernels (cudaFree,
 * cudaDeviceSynchronize) may delay that work until the transfer's deadlines pass.
 */
int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result);

/*
 * Many reads of one file at once into one buffer, from a list that the executor
 * reads and completes in place (struct gq_read_desc: `at` counts from the
 * buffer's first byte). Other threads may write to the list meanwhile. A piece
 * is then read with its old or new fields, inside the buffer in either case,
 * and each result is the last value stored.
 *
 * A long list is read by several runs in sequence, of about 1 GiB or 1,048,576
 * pieces each, estimated from samples. So a thread that waits for runs to end
 * waits for only one of them.
 */
struct gq_readv {
    struct gq_buffer *buffer;
    const struct gq_file_extent *extents; /* ascending; the last one ends at `end` */
    size_t n_extents;
    uint64_t end;           /* end of the file, or of its mapped part if goes_on; bytes */
    bool goes_on;           /* the file continues after `end` */
    struct gq_buffer *list; /* registered with is_list; pieces [first, first + n) are read */
    uint64_t first, n;
    uint64_t most;     /* bytes, not 0; see below */
    uint64_t odd_most; /* bytes of a piece; see below */
    /*
     * NULL, or two zeroed words per piece, for the checksums of the blocks of
     * GQ_SUM_BYTES bytes of the file that the piece contains in part; these blocks
     * are then read whole. The first word belongs to the block in which the piece
     * begins, unless at its start; the second to the block in which it ends, if
     * that is another one. A checksum of 0 is stored as ~0. A word stays 0 if none
     * was computed: for holes, staged buffers, an engine without
     * gq_engine_sum_parts(), and errors.
     */
    uint32_t *part_sums;
    unsigned deadline_ms;            /* as in gq_request */
    const volatile uint32_t *cancel; /* as in gq_request */
};
#define GQ_READV_EXTENTS 65536u     /* extents of a map */
#define GQ_READV_PIECES  (1u << 28) /* pieces of a list in one call */

/*
 * Returns 0 if every piece has a result: its bytes, which are fewer than its
 * length only at the end of the file, or
 *
 *   -EIO        the drive has returned an error
 *   -EAGAIN     the caller must read the piece: it has more than odd_most bytes,
 *               which would take short commands, one after another, because
 *               file offset and address differ modulo 4; or it is beyond
 *               INT64_MAX in the file
 *   -EINVAL, -EFAULT   the piece has 2^31 bytes or more, is not in the buffer
 *   -E2BIG      the piece was not begun, because one queue, or all queues in
 *               earlier runs, had begun pieces of more than `most` bytes. A list
 *               of that many bytes is read as a whole; of a longer one each
 *               queue reads at most that much, plus pieces begun within half a
 *               millisecond
 *
 * With a part of a file (goes_on, or the first extent is not at 0) pieces
 * outside the part and pieces that the run has not begun keep their results;
 * bytes and `partial` count only the run.
 *
 * result->bytes counts pieces that have bytes, result->taken all pieces that
 * were begun. `partial` means that some pieces have an error. After an error of
 * the call without `partial` the list is unchanged.
 *
 * Returns -E2BIG for more than GQ_READV_EXTENTS extents or GQ_READV_PIECES
 * pieces, -EINVAL if the map is not of this namespace or the pieces are not in a
 * list, and -ENOTSUP if `buffer` is a list. Other errors are those of
 * gq_transfer(): results of pieces that ended are then valid, and the remaining
 * pieces have -ECANCELED, -ETIMEDOUT or -ESTALE (interrupted by a reset, and no
 * queue was left to restart).
 */
int gq_readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result);

/*
 * Copies between the buffer and host memory, for the bounce path. Returns
 * -EINVAL past the buffer's end.
 */
int gq_buffer_put(struct gq_buffer *b, uint64_t offset, const void *src, size_t len);
int gq_buffer_get(struct gq_buffer *b, uint64_t offset, void *dst, size_t len);

#define GQ_SUM_BYTES 4096u
/*
 * Computes the CRC-32C (Castagnoli; initial value and final complement of all
 * ones) of n parts of GQ_SUM_BYTES bytes, which start at the offsets at[] of
 * the buffer. The executor computes them where the data is. Concurrent calls
 * are serialised. Returns -EINVAL past the buffer's end, and -EIO if the
 * executor has failed.
 */
int gq_buffer_sums(struct gq_buffer *b, const uint64_t *at, size_t n, uint32_t *sums);
/* Like gq_buffer_sums(), for n contiguous parts from this offset on. */
int gq_buffer_range_sums(struct gq_buffer *b, uint64_t offset, size_t n, uint32_t *sums);

/*
 * Returns quarantined queues to service: aborts their commands, else deletes
 * and creates them again, else resets the controller (nvme.h). The reset
 * interrupts other transfers, which then restart. Returns 0 if no command of a
 * transfer that has returned is in flight. Otherwise the controller has failed
 * for good and this call, like all later ones, returns -EIO; commands in flight
 * may still transfer data unless nvme_ctrlr_settled().
 *
 * Takes at most GQ_ABORT_MS per queue, two admin deadlines (a command that
 * misses one ends the admin queue, and the next step is the reset) and
 * nvme_ctrlr_reset_ms(), three times if a controller works after a reset but
 * refuses a queue.
 */
#define GQ_ABORT_MS 1000u
int gq_engine_recover(struct gq_engine *e);

__END_DECLS

#endif
