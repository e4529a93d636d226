/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares an NVMe controller in software behind the transport interface of the
 * driver. The controller has registers, admin and I/O commands and media,
 * injects faults, and checks the driver strictly (docs/simulator.md).
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/transport.h"
#include "sim/sim_dma_engine.h"
#include "support/reason.h"

__BEGIN_DECLS

struct sim;

#define SIM_MAX_NAMESPACES 8
#define SIM_IO_QUEUES      112u /* offered by default */
#define SIM_MAX_VECTORS    2048 /* of MSI-X */
/*
 * The doorbell_stride with which the doorbells of each queue pair have a
 * separate cache line.
 */
#define SIM_STRIDE_LINES 3u

struct sim_ns_config {
    const char *path;  /* image file; NULL: zeroed anonymous memory */
    uint64_t bytes;    /* capacity; 0 with a path: size of the file */
    uint32_t lba_size; /* 512 or 4096 */
    bool read_only;
    /*
     * Other controllers have the image open too, each with this set. Identify
     * says so (CMIC, NMIC).
     */
    bool shared;
    /*
     * Values for Identify only: bytes of metadata per LBA, and the command set
     * of zoned namespaces.
     */
    uint16_t metadata;
    bool zoned;
};

/* Zero in a field means its default. */
struct sim_config {
    struct sim_ns_config ns[SIM_MAX_NAMESPACES];
    unsigned namespaces;      /* default: 1 */
    unsigned threads;         /* controller threads; default: 1 */
    unsigned gpus;            /* GPUs served, for sim_options_parse(); default: 1 */
    unsigned io_queues;       /* offered queue pairs; default: SIM_IO_QUEUES */
    unsigned max_depth;       /* CAP.MQES + 1; default: 4096 */
    unsigned mdts;            /* bytes, 8192 to 8 MiB, a power of two; default: 1 MiB */
    unsigned doorbell_stride; /* CAP.DSTRD; default: 0 */
    /*
     * MSI-X vectors (sim_set_interrupts()), up to SIM_MAX_VECTORS. Without any,
     * a CQ with interrupts is the driver's mistake.
     */
    unsigned vectors;
    /*
     * File of the registrations and reservations of all namespaces, or NULL if
     * none are offered. The other controllers of these images name it too.
     */
    const char *reservations;
    uint16_t pci_vendor; /* of Identify; default: that of QEMU's controller */
    unsigned ready_ms;   /* time from CC.EN to CSTS.RDY; default: 0 */
    bool no_sgl, no_volatile_cache;
    bool no_mdts;           /* Identify reports no limit of transfers */
    bool no_abort;          /* Abort completes but never ends a command */
    bool no_reset;          /* the transport has no reset() (-ENOTSUP) */
    bool keeps_queues;      /* CC.EN = 0 deletes no I/O queue; only reset() does */
    bool no_device_memory;  /* memory of devices cannot be mapped (-EFAULT) */
    bool no_prp_chains;     /* the last entry of a PRP list page is a data page */
    unsigned swaps_prp;     /* N > 0: pages N and N + 1 of a PRP list are swapped */
    uint8_t swaps_opcode;   /* only for this opcode; 0: for all commands */
    bool wraps_short;       /* data below a page wraps within the page of PRP1 */
    bool reorder;           /* completes commands in random order (seed) */
    uint64_t latency_ns;    /* per command; 0: none */
    uint64_t bytes_per_sec; /* 0: no limit */
    uint64_t seed;
    /*
     * Makes writes volatile until FLUSH or FUA, so that sim_power_cut() can
     * lose them. It takes memory for each unflushed LBA and is meant for tests.
     */
    bool track_cache;
    /*
     * FLUSH, FUA and writes without a volatile cache also sync an image file,
     * in a separate thread within nvme_transport.durable_ms. After a failed
     * sync all later ones fail. Without this option flushed data survives the
     * end of this process, but not a crash of the machine.
     */
    bool flush_to_disk;
    /*
     * Called once when an image file has been truncated. `level` is that of
     * syslog(3). May be NULL.
     */
    void (*log)(int level, const char *line);
};

/*
 * Names the mistakes of the driver. A test fails if an event occurs that it did
 * not provoke.
 */
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
 * Names the kinds of faults to inject. A fault matches I/O commands in order of
 * arrival, or admin commands if `admin` is set. Fields left 0 match everything.
 */
enum sim_fault_kind {
    SIM_FAULT_STATUS, /* completes with `status` without moving data */
    SIM_FAULT_LOSE,   /* never completes; the controller keeps the command */
    SIM_FAULT_LATE,   /* completes after delay_ns */
    /*
     * Acts like LATE, and immediately posts the last completion of the queue a
     * second time.
     */
    SIM_FAULT_REPEAT,
    SIM_FAULT_FATAL,   /* sets CSTS.CFS and stops */
    SIM_FAULT_CORRUPT, /* flips one bit of the data, completes with success */
    SIM_FAULT_HANG,    /* stops execution for delay_ns (0: until a reset) */
    SIM_FAULT_REMOVE,  /* surprise removal: sim_remove() */
};

struct sim_fault {
    enum sim_fault_kind kind;
    uint8_t opcode; /* with match_opcode */
    bool match_opcode;
    bool admin;
    uint16_t qid;             /* 0: any */
    uint64_t first_lba, lbas; /* lbas 0: any */
    unsigned skip;            /* number of matches that pass before */
    unsigned times;           /* number of matches that fail then; 0: unlimited */
    unsigned one_in;          /* fires for one match in so many, drawn from the seed; 0: all */
    uint16_t status;
    uint64_t delay_ns;
};

struct sim_stats {
    uint64_t commands, reads, writes, flushes;
    uint64_t read_bytes, written_bytes;
    uint64_t doorbells;    /* number of doorbell changes seen */
    uint64_t device_bytes; /* bytes copied to or from device memory */
    uint64_t events[SIM_EV_COUNT];
};

/*
 * Creates a controller and its threads. *transport belongs to the controller
 * and is valid until its close(). The sim object lives until sim_free(), so a
 * closed controller can be inspected, power-cut, or attached again by
 * sim_attach(). Returns the errors of open(2) and mmap(2), -EBUSY if another
 * process uses the image, or -EINVAL for an invalid configuration.
 */
int sim_create(const struct sim_config *cfg, struct sim **out, struct nvme_transport **transport);
/*
 * Attaches a new controller to the same media. Precondition: the last transport
 * is closed.
 */
int sim_attach(struct sim *s, struct nvme_transport **transport);
/*
 * Syncs and closes the media, and frees the object. The transport must be
 * closed.
 */
void sim_free(struct sim *s);

int sim_add_fault(struct sim *s, const struct sim_fault *f); /* -ENOSPC after 64 */
void sim_clear_faults(struct sim *s);

void sim_get_stats(struct sim *s, struct sim_stats *out);
/* Clears the count of an event that a test has provoked. */
void sim_forgive(struct sim *s, enum sim_event e);
/* Returns the number of all events that were not forgiven. */
uint64_t sim_violations(struct sim *s);
/*
 * Stores the last events as text, one line each, with the seed and the number
 * of the command. buf is always terminated. Returns the length.
 */
size_t sim_violations_text(struct sim *s, char *buf, size_t len);

/*
 * Stops the controller at once and decides the contents of the volatile cache:
 * each LBA written and not flushed is kept, dropped, or (with 4096-byte LBAs:
 * in 512-byte sectors) torn, as drawn from the seed. Registers then read
 * all-ones. The caller closes the transport and calls sim_attach(). Requires
 * track_cache.
 */
int sim_power_cut(struct sim *s, uint64_t seed);

/*
 * Makes the controller ignore CC: CSTS.RDY keeps its value, and commands
 * continue. The transport's reset() and sim_attach() end this state.
 */
void sim_stick(struct sim *s);
/*
 * Simulates surprise removal: the controller stops at once, registers read
 * all-ones, and doorbell stores have no effect. Completed data is kept. The
 * caller closes the transport and calls sim_attach().
 */
void sim_remove(struct sim *s);
/*
 * Makes the transport's removal_fd readable, which is a request to close the
 * transport.
 */
void sim_request_close(struct sim *s);

/*
 * Reports to the driver that a namespace has changed (Asynchronous Event), as
 * after a resize of its image file. If `replaced` is true, it is another
 * namespace from now on: its NGUID differs. Returns -EINVAL without such a
 * namespace.
 */
int sim_change_ns(struct sim *s, uint32_t nsid, bool replaced);

/*
 * Sets the DMA engine for device mappings, which is not copied. Without one
 * (NULL) map() refuses device memory with -EFAULT. Returns -EBUSY while device
 * memory is mapped.
 */
int sim_set_dma_engine(struct sim *s, const struct sim_dma_engine *e);

/*
 * The following functions are for a server that offers the controller to
 * another process.
 */
/*
 * Returns the doorbells as a file that cannot be resized, at offset 0x1000 as
 * in BAR0. The simulator owns it. Returns -1 without a transport.
 */
int sim_doorbells_fd(const struct sim *s);
/*
 * Maps memory like the transport's map(), at an address chosen by the caller
 * (aligned to 4 KiB, below 2^52, otherwise -EINVAL). Returns -EEXIST if it
 * overlaps a mapping.
 */
int sim_map_at(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t iova);
/*
 * Sets the eventfds of n MSI-X vectors, which are duplicated. A completion in
 * a CQ with interrupts signals that of its vector; several may be signalled
 * once. Without `events` (NULL) the vectors are not signalled any more. Returns
 * -EINVAL for vectors that do not exist and for other descriptors, or -errno.
 */
int sim_set_interrupts(struct sim *s, unsigned first, unsigned n, const int *events);
/* Signals a vector once. Returns 0 or -EINVAL. */
int sim_trigger_interrupt(struct sim *s, unsigned vector);

/*
 * Reads the media of a namespace, for tests: contents as of the last
 * completion.
 */
int sim_peek(struct sim *s, uint32_t nsid, uint64_t offset, void *buf, size_t len);

/*
 * sim_options.c: parses KEY:VALUE pairs in the form in which a mount receives
 * them, "threads:8:lba:512". Sets the fields of *cfg that the text names, and the
 * number of threads in any case, by default at most eight for each of cfg->gpus;
 * no other field changes. A `text` of NULL means no options. Returns 0, or -EINVAL with a sentence
 * in why.
 */
int sim_options_parse(const char *text, struct sim_config *cfg, struct reason *why);

__END_DECLS

#endif
