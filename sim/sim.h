/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An NVMe controller in software behind the transport interface of the driver:
 * registers, admin and I/O commands, media, faults, and strict checks of the
 * driver (docs/simulator.md).
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/transport.h"
#include "sim/sim_dma_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sim;

#define SIM_MAX_NAMESPACES 8
/* A doorbell_stride with which each queue pair's doorbells have a cache line of their own. */
#define SIM_STRIDE_LINES 3u

struct sim_ns_config {
    const char *path;  /* image file; NULL: anonymous memory, zeroed */
    uint64_t bytes;    /* capacity of anonymous memory; 0 with a path: the file's size */
    uint32_t lba_size; /* 512 or 4096 */
    bool read_only;
    /* Of Identify only: bytes of metadata an LBA, and the command set of zoned namespaces. */
    uint16_t metadata;
    bool zoned;
    bool null_media; /* completes at once without moving data, to measure the command path */
};

/* Zero in a field means its default. */
struct sim_config {
    struct sim_ns_config ns[SIM_MAX_NAMESPACES];
    unsigned namespaces;      /* 1 */
    unsigned threads;         /* controller threads: 1 */
    unsigned io_queues;       /* pairs offered: 112 */
    unsigned max_depth;       /* CAP.MQES + 1: 4096 */
    unsigned mdts;            /* bytes, a power of two from 8192 to 8 MiB: 1 MiB */
    unsigned doorbell_stride; /* CAP.DSTRD: 0 */
    unsigned ready_ms;        /* time from CC.EN to CSTS.RDY: 0 */
    bool no_sgl, no_volatile_cache;
    bool no_mdts;           /* MDTS of Identify says that there is no limit */
    bool no_abort;          /* Abort completes and never ends a command */
    bool no_reset;          /* the transport has no reset() (-ENOTSUP) */
    bool keeps_queues;      /* CC.EN = 0 deletes no I/O queue; only reset() does */
    bool no_device_memory;  /* memory of devices cannot be mapped (-EFAULT) */
    bool no_prp_chains;     /* the last entry of a PRP list page is a data page */
    unsigned swaps_prp;     /* N > 0: pages N and N + 1 of a PRP list change places */
    uint8_t swaps_opcode;   /* of commands with this opcode only; 0: of all */
    bool wraps_short;       /* data of less than a page stays in the page of PRP1 */
    bool reorder;           /* completes commands out of order, from the seed */
    uint64_t latency_ns;    /* per command; 0: none */
    uint64_t bytes_per_sec; /* 0: no limit */
    uint64_t seed;
    /*
     * true: writes are volatile until FLUSH or FUA, and sim_power_cut() can
     * lose them. Costs memory for each unflushed LBA; for tests.
     */
    bool track_cache;
    /*
     * FLUSH, FUA and writes without a volatile cache also sync an image file,
     * in a separate thread; the time is bounded by nvme_transport.durable_ms.
     * After a failed sync all later ones fail. Without this option flushed data
     * survives the end of this process, not of this machine.
     */
    bool flush_to_disk;
    /* Called once when an image file has been truncated; level as in syslog(3). May be NULL. */
    void (*log)(int level, const char *line);
};

/* Mistakes of the driver. A test fails on an event that it did not provoke. */
#define SIM_EVENTS(X)                                                               \
    X(DB_INVALID_QUEUE, "doorbell of a queue that does not exist")                  \
    X(DB_OUT_OF_RANGE, "doorbell value not below the queue size")                   \
    X(SQ_OVERRUN, "SQ tail moved past the head the controller has reported")        \
    X(CQ_HEAD_PAST_TAIL, "CQ head moved past the last completion posted")           \
    X(CID_REUSE, "command identifier already in flight on this queue")              \
    X(PRP_UNMAPPED, "PRP or SGL points outside mapped memory")                      \
    X(PRP_MISALIGNED, "PRP1 not dword aligned, or a later PRP not page aligned")    \
    X(PRP_LIST_MISALIGNED, "PRP list pointer not 8-byte aligned")                   \
    X(PRP_LIST_OVERFLOW, "PRP list leaves its page without a chain entry")          \
    X(PRP_CHAINED, "PRP list of several pages, and no chain is followed")           \
    X(SGL_INVALID, "SGL descriptor type or length not valid")                       \
    X(RESERVED_FIELD, "reserved field not zero")                                    \
    X(TRANSFER_TOO_LARGE, "transfer over MDTS")                                     \
    X(LBA_RANGE, "LBA range past the end of the namespace")                         \
    X(BAD_OPCODE, "opcode that was not offered")                                    \
    X(BAD_NSID, "namespace that is not active")                                     \
    X(BAD_QUEUE_CREATE, "queue creation with values that are not valid")            \
    X(BAD_QUEUE_DELETE, "CQ deleted before its SQ, or a queue that does not exist") \
    X(BAD_ENABLE, "CC.EN set with values that are not valid")                       \
    X(REG_MISUSE, "register written that is read-only, or changed while enabled")   \
    X(ABORT_LIMIT, "more Abort commands at a time than ACL allows")                 \
    X(UNMAP_IN_FLIGHT, "memory unmapped while a command could reach it")            \
    X(CLOSED_ENABLED, "transport closed while the controller was enabled")

enum sim_event {
#define SIM_EVENT_ENUM(name, text) SIM_EV_##name,
    SIM_EVENTS(SIM_EVENT_ENUM)
#undef SIM_EVENT_ENUM
        SIM_EV_COUNT
};
const char *sim_event_name(enum sim_event e);
const char *sim_event_text(enum sim_event e);

/*
 * A fault to inject. Matches I/O commands (with `admin`: admin commands) in order of arrival;
 * fields left 0 match everything.
 */
enum sim_fault_kind {
    SIM_FAULT_STATUS, /* complete with `status`, data not moved */
    SIM_FAULT_LOSE,   /* never complete (the controller keeps the command) */
    SIM_FAULT_LATE,   /* complete after delay_ns */
    /* As LATE; and the command of the queue that completed last is completed once more now. */
    SIM_FAULT_REPEAT,
    SIM_FAULT_FATAL,   /* set CSTS.CFS and stop */
    SIM_FAULT_CORRUPT, /* flip one bit of the data, complete with success */
    SIM_FAULT_HANG,    /* the controller executes nothing for delay_ns (0: until a reset) */
    SIM_FAULT_REMOVE,  /* surprise removal: sim_remove() */
};

struct sim_fault {
    enum sim_fault_kind kind;
    uint8_t opcode; /* with match_opcode */
    bool match_opcode;
    bool admin;
    uint16_t qid;             /* 0: any */
    uint64_t first_lba, lbas; /* lbas 0: any */
    unsigned skip;            /* number of matches that pass first */
    unsigned times;           /* number of matches that fail then; 0: no limit */
    unsigned one_in;          /* one match in this many fires, drawn from the seed; 0: each */
    uint16_t status;
    uint64_t delay_ns;
};

struct sim_stats {
    uint64_t commands, reads, writes, flushes;
    uint64_t read_bytes, written_bytes;
    uint64_t doorbells;    /* changes of a doorbell value seen */
    uint64_t device_bytes; /* copied to or from device memory */
    uint64_t events[SIM_EV_COUNT];
};

/*
 * Creates a controller and its threads. On success *transport belongs to the
 * controller and is valid until its close(). The sim object lives until
 * sim_free(), so a closed controller can be inspected, power-cut, or attached
 * again with sim_attach(). Errors: those of open(2) and mmap(2); -EBUSY:
 * another process has the image; -EINVAL: invalid configuration.
 */
int sim_create(const struct sim_config *cfg, struct sim **out, struct nvme_transport **transport);
/*
 * A fresh controller on the same media. Precondition: the last transport is
 * closed.
 */
int sim_attach(struct sim *s, struct nvme_transport **transport);
/* The transport must be closed. Syncs and closes the media. */
void sim_free(struct sim *s);

int sim_add_fault(struct sim *s, const struct sim_fault *f); /* -ENOSPC after 64 */
void sim_clear_faults(struct sim *s);

void sim_get_stats(struct sim *s, struct sim_stats *out);
/* Clears the count of an event that a test has provoked. */
void sim_forgive(struct sim *s, enum sim_event e);
/* Total of all events not forgiven. */
uint64_t sim_violations(struct sim *s);
/*
 * The last events as text, one line each, with the seed and the number of the
 * command. buf is always terminated. Returns the length.
 */
size_t sim_violations_text(struct sim *s, char *buf, size_t len);

/*
 * Stops the controller at once and decides the volatile cache: each LBA written
 * and not flushed is kept, dropped, or (4096-byte LBAs: in 512-byte sectors)
 * torn, drawn from the seed. Registers then read all-ones; close the transport,
 * then sim_attach(). Needs track_cache.
 */
int sim_power_cut(struct sim *s, uint64_t seed);

/*
 * The controller ignores CC: CSTS.RDY keeps its value, commands continue. Ended
 * by the transport's reset() and by sim_attach().
 */
void sim_stick(struct sim *s);
/*
 * Surprise removal: the controller stops at once, registers read all-ones,
 * doorbell stores have no effect. Completed data is kept. Close the transport,
 * then sim_attach().
 */
void sim_remove(struct sim *s);
/*
 * Makes the transport's removal_fd readable: a request to close the transport.
 */
void sim_request_close(struct sim *s);

/*
 * The DMA engine for device mappings, not copied; NULL: none, map() then refuses
 * device memory with -EFAULT. -EBUSY: device memory is mapped.
 */
int sim_set_dma_engine(struct sim *s, const struct sim_dma_engine *e);

/* Functions for a server that offers the controller to another process. */
/*
 * The doorbells as a file that cannot be resized, at offset 0x1000 as in BAR0.
 * Owned by the simulator. -1 without a transport.
 */
int sim_doorbells_fd(const struct sim *s);
/*
 * As the transport's map(), at an address chosen by the caller (4 KiB aligned,
 * not 0, below 2^52; otherwise -EINVAL). -EEXIST: overlap with a mapping.
 */
int sim_map_at(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t iova);

/*
 * The file behind a namespace, for other processes to map; owned by the
 * simulator. fd -1: none. Copies to and from devices access base directly if it
 * could be pinned.
 */
struct sim_media {
    int fd;
    const void *base;
    size_t len; /* bytes, whole pages */
};
void sim_get_media(struct sim *s, uint32_t nsid, struct sim_media *out);
/* The namespace does not grow with its file from now on. Not beside an Identify command. */
void sim_fix_media(struct sim *s, uint32_t nsid);

/*
 * Reads the media of a namespace, for tests: contents as of the last
 * completion.
 */
int sim_peek(struct sim *s, uint32_t nsid, uint64_t offset, void *buf, size_t len);

#ifdef __cplusplus
}
#endif

#endif
