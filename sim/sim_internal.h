/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the simulated controller: its threads, queues, media and memory map.
 *
 * Locking: a controller thread holds its own lock during a round of work and at
 * no other time. State that threads read in a round (queues, memory map,
 * faults, media) changes only between sim_pause() and sim_resume(). sim_pause()
 * takes the gate and the lock of every thread, so a round needs no lock for a
 * command. Locks are taken in this order: reg_lock or map_lock, the gate, the
 * locks of the threads by number, an ns lock or the event lock.
 */
#ifndef SIM_SIM_INTERNAL_H
#define SIM_SIM_INTERNAL_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/transport.h"
#include "sim/sim.h"
#include "support/clock.h"

#define SIM_SPIN_US     200u /* polling after the last work, with spare cores */
#define SIM_SPIN_FEW_US 20u
#define SIM_MAX_THREADS 64u
#define SIM_MAX_FAULTS  64u
#define SIM_BATCH       32u   /* commands fetched from one queue at a time */
#define SIM_COMMANDS    8192u /* commands in progress per thread */
#define SIM_MAX_SPANS   4096u /* spans of one command, adjacent ones merged */
#define SIM_NO_COMMAND  UINT32_MAX
#define SIM_DRAIN_MS    5000u /* time limit for copies in flight */

/* --- sim_iova.c: the IOVA space --------------------------------------------------------------- */

/*
 * The IOVA space of the controller is a sorted table of mappings with guard
 * gaps. It changes only while all threads are paused.
 */

#define SIM_IOVA_END (1ull << 52)

/* Describes memory that the driver has mapped. */
struct sim_mapping {
    uint64_t iova; /* first, for array_lower() */
    size_t len;
    unsigned char *host; /* NULL for device memory */
    uint64_t device;
    unsigned dma; /* of device memory: number of the device in the DMA engine */
    bool dying;   /* unmap() waits for copies, and no new ones start */
};

struct sim_iova_table {
    struct sim_mapping *at; /* sorted by iova */
    size_t n;
    uint64_t next; /* never reused, so that stale addresses are detected */
};

/*
 * Add mem at an address returned in *iova, or at a given one. Return -ENOSPC,
 * -EEXIST or -ENOMEM.
 */
int sim_iova_add(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t *iova);
int sim_iova_add_at(struct sim_iova_table *t, const struct nvme_mem *mem, uint64_t iova);
/* Returns the mapping that starts at iova, or NULL. */
struct sim_mapping *sim_iova_find(const struct sim_iova_table *t, uint64_t iova);
void sim_iova_remove(struct sim_iova_table *t, uint64_t iova); /* the mapping must exist */
/*
 * Returns the index of the last mapping that starts at or below iova, or the
 * size of the table if there is none.
 */
size_t sim_mapping_below(const struct sim_iova_table *t, uint64_t iova);

/* --- sim_interrupt.c: MSI-X vectors ----------------------------------------------------------- */

/*
 * Holds MSI-X vectors as eventfds of another process. A separate thread writes
 * to the eventfds, since a write waits if the other process has filled the
 * eventfd.
 */

struct sim_interrupts {
    unsigned n; /* number of vectors */
    /* By vector, -1 without one. They change while the thread is stopped. */
    int *events;
    _Atomic uint64_t *pending; /* bitmap of vectors to signal */
    int bell;                  /* an eventfd that the thread waits for */
    uint64_t rung;             /* value that the thread has read from it */
    int current;               /* the vector that the thread signals, or -1 */
    pthread_t thread;
    bool started;
};

/* Returns 0 or -errno. Without vectors (n == 0) no other call is allowed. */
int sim_interrupts_init(struct sim_interrupts *is, unsigned n);
/* Stops the thread and closes all eventfds. */
void sim_interrupts_free(struct sim_interrupts *is);
/* Makes the thread signal a vector. May be called by any thread; never waits. */
void sim_interrupt_raise(struct sim_interrupts *is, unsigned vector);

/* --- sim_media.c: the media of a namespace ---------------------------------------------------- */

struct sim_ns;

/* Opens the media. Returns 0 or -errno. */
int sim_media_open(struct sim_ns *ns, const struct sim_ns_config *cfg);
void sim_media_close(struct sim_ns *ns);
/* These functions copy from and to a place of ns->base. They return a status, since the disk may
 * fail. */
uint16_t sim_media_read(const struct sim_ns *ns, const unsigned char *media, void *to, size_t len);
uint16_t sim_media_write(const struct sim_ns *ns, unsigned char *media, const void *from,
                         size_t len);
uint16_t sim_media_zero(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/* Returns true if the image file has become shorter. */
bool sim_media_is_shrunk(const struct sim_ns *ns);
/*
 * Grows the namespace if the image file has grown, within the room that was
 * mapped for it. Called by the thread of admin commands.
 */
void sim_media_refresh(struct sim_ns *ns);

/* --- sim_reserve.c: reservations ------------------------------------------------------------- */

struct sim_thread;
struct sim_cmd;

/* Open and close the file. open returns 0 or -errno. */
int sim_reserve_open(struct sim *s);
void sim_reserve_close(struct sim *s);
/* Returns true if the host of this controller may run the command now. */
bool sim_reserve_permits(struct sim *s, const struct nvme_sqe *sqe);
/* Returns true for the reservation commands. */
static inline bool sim_reserve_has(uint8_t opcode)
{
    return opcode == NVME_IO_RESV_REGISTER || opcode == NVME_IO_RESV_REPORT ||
           opcode == NVME_IO_RESV_ACQUIRE || opcode == NVME_IO_RESV_RELEASE;
}
/* Returns the length of the data of a reservation command in bytes, or 0 for other commands. */
static inline size_t sim_reserve_bytes(const struct nvme_sqe *sqe)
{
    if (sqe->opcode == NVME_IO_RESV_REPORT)
        return ((size_t)sqe->cdw10 + 1) * 4;
    if (!sim_reserve_has(sqe->opcode))
        return 0;
    return (sqe->opcode == NVME_IO_RESV_RELEASE ? 1 : 2) * sizeof(uint64_t);
}
/* Executes a reservation command. Returns a status. */
uint16_t sim_reserve_run(struct sim_thread *th, const struct nvme_sqe *sqe);
/* Returns true if another controller has changed a reservation. */
bool sim_reserve_changed(const struct sim *s);
/* Records the changes of other controllers. Called while the threads are paused. */
void sim_reserve_look(struct sim *s);
/* Called while the threads are paused, after the host identifier was set or cleared. */
void sim_reserve_host_changed(struct sim *s);
/* Stores the oldest event in the log page, of 64 bytes. */
void sim_reserve_log(struct sim *s, void *page);
/* Removes the oldest event. Called after the host has read the log page. */
void sim_reserve_log_read(struct sim *s);

/* Status values that nvme_spec.h does not have (BASE figures 95 to 97). */
#define SIM_ERR_WRITE_PROTECTED  0x020u
#define SIM_ERR_INVALID_VECTOR   0x108u
#define SIM_ERR_AER_LIMIT        0x105u
#define SIM_ERR_INVALID_LOG_PAGE 0x109u
#define SIM_ERR_NOT_SAVEABLE     0x10du
#define SIM_FIRMWARE             "1"
#define SIM_CTRL_ID              1u
#define SIM_KELVIN               310u /* the temperature, which never changes */
#define SIM_WARNING_KELVIN       343u
#define SIM_AER_LIMIT            4u
#define SIM_ABORT_LIMIT          4u /* Abort commands at a time, ACL + 1 */
#define SIM_NSID_ALL             UINT32_MAX
#define SIM_EXPECTED             1u /* work is announced: thread 0 stays awake */
#define SIM_EXPECTED_OF_ALL      2u /* and thread 0 wakes all other threads */
#define SIM_CACHE_LINE           64
/* Code that every command runs, code for some commands, and error paths. */
#define SIM_HOT   inline __attribute__((always_inline))
#define SIM_APART __attribute__((noinline))
#define SIM_RARE  __attribute__((noinline, cold))

/* The volatile cache; both are NULL without one (sim_ns.track). */
struct sim_undo {
    unsigned char *before; /* written LBAs as of the last flush, at their places */
    uint64_t *written;     /* bitmap of these LBAs */
};

struct sim_ns {
    pthread_mutex_t lock; /* protects undo */
    unsigned char *base;
    /*
     * Only the thread of admin commands changes both fields, and it only
     * increases them. An LBA that a thread sees is mapped.
     */
    _Atomic uint64_t lbas;
    _Atomic size_t len; /* whole pages */
    size_t mapped;      /* more than len: the mapping has room for growth */
    int fd;             /* -1 without a file */
    uint32_t lba_size;
    unsigned lba_shift;
    bool read_only, is_file, track, pinned;
    bool in_memory;    /* a file without a disk (tmpfs) */
    bool syncs;        /* durable means fdatasync(): see sim_flush.c */
    bool grows;        /* with its file, while `fixed` is false */
    bool fixed;        /* pinned, or about to be; changes while paused */
    unsigned identity; /* changes while paused: see sim_change_ns() */
    atomic_bool shrunk_said;
    struct sim_undo undo;
};

struct sim_cq {
    _Alignas(SIM_CACHE_LINE) unsigned char *ring; /* NULL if the queue does not exist */
    _Atomic uint32_t *doorbell;
    uint64_t iova;
    uint32_t size, head, tail, seen;
    uint16_t id;
    uint16_t phase;
    unsigned users;                    /* number of SQs that use this CQ */
    struct sim_interrupts *interrupts; /* NULL without interrupts (CDW11.IEN) */
    uint16_t vector;
    bool kept; /* kept after CC.EN = 0 (keeps_queues) until it is deleted */
};

struct sim_sq {
    _Alignas(SIM_CACHE_LINE) const unsigned char *ring; /* NULL if the queue does not exist */
    _Atomic uint32_t *doorbell;
    struct sim_cq *cq;
    uint64_t *cids; /* bitmap of identifiers in flight */
    _Atomic uint64_t submitted;
    uint32_t size, head, tail, seen;
    uint32_t reported; /* head in the last posted completion */
    uint32_t last;     /* CID of that completion | 1 << 16; 0: none was posted */
    uint16_t id;
    bool deleting;     /* no more fetches */
    bool kept;         /* see sim_cq */
    _Atomic bool lent; /* the owner executes the commands: sim_kick_queue() */
    uint64_t iova;
};

enum sim_cmd_state { SIM_CMD_FREE, SIM_CMD_HELD, SIM_CMD_LOST, SIM_CMD_MOVING, SIM_CMD_DONE };

/* Describes a command, from its fetch to its completion. */
struct sim_cmd {
    _Alignas(SIM_CACHE_LINE) struct nvme_sqe sqe;
    struct sim_sq *sq;
    uint32_t next; /* list link */
    uint16_t status;
    uint8_t state; /* enum sim_cmd_state */
    bool decided;  /* completes with status, without moving data */
    bool corrupt;
    bool dead;           /* the queue was deleted, so no completion is posted */
    bool queued;         /* all its copies have been submitted */
    unsigned subs;       /* number of submissions that contain its copies */
    uint64_t due, order; /* heap key */
    uint64_t flush;      /* with due == SIM_NEVER: number of the awaited sync */
};
#define SIM_NEVER UINT64_MAX
static_assert(sizeof(struct sim_cmd) == 2 * SIM_CACHE_LINE, "a command is two lines");

struct sim_span {
    unsigned char *host; /* NULL for device memory */
    uint64_t device;
    size_t len;
    uint64_t mapping; /* IOVA of the mapping */
    unsigned dma;     /* number of the device in the DMA engine */
};

struct sim_counters {
    _Atomic uint64_t commands, reads, writes, flushes;
    _Atomic uint64_t read_bytes, written_bytes, doorbells, device_bytes;
};

struct sim_list {
    uint32_t head, tail;
};

struct sim_move;

struct sim_thread {
    pthread_mutex_t lock;
    struct sim *s;
    unsigned index;
    pthread_t pthread;
    bool started;

    /* Protected by lock, which this thread or a pause holds. */
    struct sim_sq **sqs; /* queues that the thread owns */
    unsigned n_sqs, turn;
    size_t last_mapping; /* index of the last lookup's result */
    uint64_t rng, order;
    struct sim_cmd *commands;
    struct sim_cmd **free; /* a stack, so that taking a record loads no other one */
    unsigned free_commands;
    uint32_t *heap; /* of held commands */
    unsigned n_heap;
    struct sim_list done; /* completed, waiting for room in the CQ */
    struct sim_span *spans;
    unsigned n_spans, host_spans;            /* number of host memory spans */
    struct sim_move *moves[SIM_DMA_DEVICES]; /* by device; NULL without mappings of it */
    unsigned n_moves;                        /* number of the last device that has one, plus 1 */
    uint64_t flushed;            /* number of the last sync whose waiters were completed */
    bool blocked;                /* a command waits for room for its copies and occupies spans */
    struct sim_cmd *blocked_cmd; /* that command, and the bytes of it that are queued */
    size_t blocked_queued;
    struct sim_counters count;
    _Atomic unsigned moving; /* commands with copies in flight; stored under lock */
    unsigned rounds, sweeps;
    /* Rounds without work, 0 after a sleep; used only by the thread itself. */
    unsigned spins;

    _Alignas(SIM_CACHE_LINE) _Atomic uint32_t parked; /* futex: 1 while asleep */
    _Atomic bool stop;
    /* A thread of the driver (sim_kick_queue()) has left work. Stored under lock. */
    _Atomic bool left;
};

struct sim_fault_state {
    struct sim_fault f;
    _Atomic uint64_t matches, fired;
};

#define SIM_KEPT_FEATURES 6u

#define SIM_HOST_ID 16u

/* Values of features, which a reset of the controller sets to their defaults. */
struct sim_features {
    uint8_t host[SIM_HOST_ID];                    /* Host Identifier */
    uint32_t kept[SIM_KEPT_FEATURES];             /* of those without an effect, but events */
    uint16_t over_kelvin, under_kelvin;           /* temperature thresholds */
    uint64_t no_coalescing[SIM_MAX_VECTORS / 64]; /* bitmap of vectors */
};

struct sim_flusher {
    /* Held until a failure is stored, since the kernel reports it once. */
    pthread_mutex_t syncing;
    pthread_mutex_t lock; /* protects asked and stop */
    pthread_cond_t wake;
    uint64_t asked;
    bool stop, started;
    pthread_t thread;
    _Atomic uint64_t done; /* number of the last attempted sync */
    _Atomic bool failed;   /* a sync has failed; stored before done */
};

/* The reservations of the namespaces are in a file that the other controllers map, too. */
struct sim_reservations {
    int fd;                     /* -1: none are offered */
    struct sim_reserve *shared; /* by NSID - 1; NULL: none are offered */
    pthread_mutex_t lock;       /* excludes threads of this controller from the file */
    _Atomic uint64_t view[SIM_MAX_NAMESPACES]; /* what commands may do: sim_reserve.c */
    _Atomic uint32_t registered;               /* this host is: bit nsid - 1 */
    /* The following fields change only during a pause. */
    uint32_t seen[SIM_MAX_NAMESPACES]; /* changes that were looked at */
    uint32_t preempted;                /* registrations that another host has ended */
    bool notified;                     /* an event was completed, and its log not read since */
};

#define SIM_VIOLATIONS_KEPT 16u
#define SIM_VIOLATION_TEXT  192u

struct sim {
    struct nvme_transport t; /* of the current driver */
    struct sim_config cfg;
    struct sim_ns ns[SIM_MAX_NAMESPACES];
    struct sim_thread *threads;
    unsigned n_threads;
    unsigned spin_us;
    /* Number of holders of queues that cannot kick: see sim_keep_polling(). */
    _Atomic unsigned silent_holders;

    pthread_mutex_t reg_lock; /* registers */
    uint64_t asq, acq;
    uint32_t aqa;
    _Atomic uint32_t shst; /* of CSTS; changes under reg_lock */
    _Atomic uint32_t cc;
    uint64_t ready_at;
    _Atomic bool stuck; /* CSTS.RDY is stuck_rdy and ignores CC; under reg_lock */
    uint32_t stuck_rdy; /* NVME_CSTS_READY or 0 */
    bool attached;      /* a driver has the transport */

    /* Serialises map() and unmap(); protects the DMA engine and the pins. */
    pthread_mutex_t map_lock;
    const struct sim_dma_engine *dma_engine; /* constant while there are device mappings */
    unsigned device_mappings;
    bool has_moves[SIM_DMA_DEVICES]; /* threads have a struct sim_move for the device */
    /* Used if there are more threads than channels. */
    pthread_mutex_t channel_locks[SIM_MAX_THREADS];

    pthread_mutex_t gate_lock;
    _Atomic bool gate; /* a pause is requested, so no thread starts a round */

    /* These change only during a pause and are read under any thread's lock. */
    struct sim_iova_table iova;
    struct sim_sq *sqs; /* [0] is the admin queue */
    struct sim_cq *cqs;
    unsigned granted;                 /* I/O queue pairs */
    uint16_t aer_cids[SIM_AER_LIMIT]; /* outstanding Asynchronous Event Requests */
    unsigned aers;
    struct sim_features features;
    struct sim_reservations reservations;
    uint32_t changed; /* namespaces of the changed list, bit nsid - 1 */
    bool change_told; /* an event was completed, and the list not read since */
    struct sim_span *admin_spans;
    _Atomic bool running;
    /* An unmap() has exceeded its wait for copies, and none has ended since. */
    _Atomic bool stalled;
    bool wce;
    uint64_t delete_deadline; /* deadline of a queue deletion that waits for copies */
    uint64_t admin_due;       /* due time of the first delayed admin command, or UINT64_MAX */
    struct sim_fault_state faults[SIM_MAX_FAULTS];
    unsigned n_faults;
    bool delays; /* latency, bandwidth or reordering is configured */

    _Atomic uint32_t *doorbells;
    size_t doorbells_len;
    int doorbells_fd;
    _Atomic uint32_t *seen; /* last value seen, by doorbell word */
    /* Number of the thread that serves a queue, by 2 * id + (1 for a CQ). */
    _Atomic uint8_t *owner;
    _Atomic unsigned top_queue; /* highest id of an existing queue */
    struct sim_flusher flusher;
    struct sim_interrupts interrupts;
    _Atomic bool halted;         /* CSTS.CFS */
    _Atomic bool gone;           /* power cut or removed: registers read all-ones */
    _Atomic uint64_t hung_until; /* 0: not hung; UINT64_MAX: until a reset */
    _Atomic uint64_t bandwidth_free_at;

    _Alignas(SIM_CACHE_LINE) _Atomic uint64_t kicks;
    _Atomic unsigned expected; /* SIM_EXPECTED...: see sim_expect() */

    _Atomic uint64_t events[SIM_EV_COUNT];
    pthread_mutex_t event_lock; /* violations */
    char violations[SIM_VIOLATIONS_KEPT][SIM_VIOLATION_TEXT];
    uint64_t n_violations;
};

static inline struct sim *sim_of(struct nvme_transport *t)
{
    return (struct sim *)t; /* the first field */
}

/* sim_thread.c */
int sim_threads_start(struct sim *s);
void sim_threads_stop(struct sim *s);
static inline unsigned sim_owner(struct sim *s, unsigned qid, bool cq)
{
    return atomic_load_explicit(&s->owner[2 * qid + cq], memory_order_relaxed);
}
/* Implement wake(), keep_polling() and submitted() of the transport. */
void sim_expect(struct nvme_transport *t, unsigned queues);
void sim_keep_polling(struct nvme_transport *t, int change);
uint64_t sim_submitted(struct nvme_transport *t, uint16_t qid);
/* kick() of the transport: the driver's thread executes the commands itself. */
void sim_kick_queue(struct nvme_transport *t, uint16_t qid);

/* sim_gate.c */
void sim_pause(struct sim *s);
void sim_resume(struct sim *s);
void sim_nap(void);
/*
 * Waits for the end of a pause. Without the gate a busy thread would take its
 * lock again before the pausing thread is scheduled.
 */
void sim_pass_gate(struct sim *s);
void sim_wake(struct sim_thread *th);
void sim_wake_all(struct sim *s);
bool sim_drained(struct sim *s);
/* Waits until no copy is in flight, without a pause. 0 or -ETIMEDOUT. */
int sim_drain(struct sim *s);
static inline uint64_t sim_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline void sim_count(_Atomic uint64_t *c, uint64_t n)
{
    /* Written under the owner's lock; a reader only needs an untorn value. */
    uint64_t v = atomic_load_explicit(c, memory_order_relaxed);
    atomic_store_explicit(c, v + n, memory_order_relaxed);
}

/* sim_transport.c */
int sim_transport_create(struct sim *s);

/* sim_regs.c */
#define SIM_VERSION 0x00020000u /* NVMe 2.0 */
uint64_t sim_reg_read(struct nvme_transport *t, uint32_t offset, unsigned bytes);
void sim_reg_write(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes);
/* Clears CC.EN. Called with reg_lock held. */
void sim_disable(struct sim *s);
void sim_keep_queues(struct sim *s,
                     bool keep); /* called before clearing, with the threads paused */
/* Deletes all queues and drops all commands. The threads must be paused. */
void sim_controller_stop(struct sim *s);

/* sim_event.c */
void sim_flag(struct sim *s, enum sim_event e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), cold));

/* sim_map.c */
int sim_map(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova);
int sim_unmap(struct nvme_transport *t, uint64_t iova);
void sim_unmap_all(struct sim *s);

/*
 * Returns the mapping that contains [iova, iova + len), or NULL. *hint is the
 * index of the last result.
 */
static inline const struct sim_mapping *sim_lookup(const struct sim *s, size_t *hint, uint64_t iova,
                                                   size_t len)
{
    const struct sim_iova_table *t = &s->iova;

    if (*hint >= t->n || iova - t->at[*hint].iova >= t->at[*hint].len)
        *hint = sim_mapping_below(t, iova);
    if (*hint == t->n)
        return NULL;
    const struct sim_mapping *m = &t->at[*hint];
    uint64_t offset = iova - m->iova;
    return m->dying || offset >= m->len || len > m->len - offset ? NULL : m;
}
/* Returns the address of host memory, or NULL for anything else. */
unsigned char *sim_host_at(struct sim_thread *th, uint64_t iova, size_t len);

/*
 * sim_queue.c: sim_sq_peek() loads the doorbells, and sim_sq_poll() fetches the
 * commands that it has seen.
 */
bool sim_sq_poll(struct sim_thread *th, struct sim_sq *sq);
bool sim_sq_has_new(struct sim_sq *sq);
void sim_sq_peek(struct sim_thread *th, struct sim_sq *sq);
/* Posts completions that waited for room in their CQ, while there is. */
bool sim_cq_post_waiting(struct sim_thread *th);
/* Returns the number of ring entries from one index to another. */
static inline uint32_t sim_distance(uint32_t from, uint32_t to, uint32_t size)
{
    return to >= from ? to - from : to + size - from;
}
static inline bool sim_cq_has_room(const struct sim_cq *cq)
{
    uint32_t next = cq->tail + 1;

    return (next == cq->size ? 0 : next) != cq->head;
}
static inline void sim_post(struct sim_sq *sq, uint32_t cid, uint32_t status, uint32_t result)
{
    struct sim_cq *cq = sq->cq;
    uint64_t *qw = (uint64_t *)(void *)(cq->ring + (size_t)cq->tail * sizeof(struct nvme_cqe));
    uint32_t *dw = (uint32_t *)&qw[1];
    uint32_t last = cid | (status << 1 | cq->phase) << 16;

    qw[0] = result;
    dw[0] = sq->head | (uint32_t)sq->id << 16;
    sq->reported = sq->head;
    sq->last = 1u << 16 | cid;
    sq->cids[cid / 64] &= ~(1ull << (cid % 64));
    /* Release: data and the rest of the CQE are visible before the phase. */
    atomic_store_explicit((_Atomic uint32_t *)&dw[1], last, memory_order_release);
    if (++cq->tail == cq->size) {
        cq->tail = 0;
        cq->phase ^= 1;
    }
    if (cq->interrupts)
        sim_interrupt_raise(cq->interrupts, cq->vector);
}
/* Fetches the SQE at the head. Precondition: the SQ is not empty. */
void sim_fetch(struct sim_thread *th, struct sim_sq *sq, struct nvme_sqe *sqe);
/* Checks every step-th of these doorbell words for stores to no queue. */
void sim_sweep_doorbells(struct sim_thread *th, size_t from, size_t to, size_t step);
void sim_doorbells_reset(struct sim *s, uint16_t qid, bool cq);
size_t sim_doorbell_word(const struct sim *s, unsigned qid, bool cq);

/* sim_hold.c */
void sim_commands_reset(struct sim_thread *th);
/* Returns a held command, not in the heap. There must be a free record. */
static inline struct sim_cmd *sim_command_take(struct sim_thread *th, struct sim_sq *sq)
{
    struct sim_cmd *cmd = th->free[--th->free_commands];

    cmd->sq = sq;
    cmd->state = SIM_CMD_HELD;
    cmd->status = NVME_OK;
    cmd->decided = cmd->corrupt = cmd->dead = cmd->queued = false;
    cmd->subs = 0;
    return cmd;
}
static inline void sim_command_free(struct sim_thread *th, struct sim_cmd *cmd)
{
    cmd->state = SIM_CMD_FREE;
    th->free[th->free_commands++] = cmd;
}
/* Posts the CQE, for which there must be room, and frees the record. */
static inline void sim_complete(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status)
{
    sim_post(cmd->sq, cmd->sqe.cid, status, 0);
    sim_command_free(th, cmd);
}
void sim_hold(struct sim_thread *th, struct sim_cmd *cmd, uint64_t due);
SIM_RARE void sim_wait_for_room(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status);
/* Takes the first held command if it is due at `now`, else returns NULL. */
struct sim_cmd *sim_held_take(struct sim_thread *th, uint64_t now);
/* Ends the commands that wait for sync `flush`; false if none does. */
bool sim_held_flushed(struct sim_thread *th, uint64_t flush, uint16_t status);
uint64_t sim_due(struct sim_thread *th, const struct nvme_sqe *sqe, uint64_t now);
/* Completes a held or lost command. All threads must be paused. */
bool sim_abort(struct sim *s, uint16_t sqid, uint16_t cid, uint16_t status);
void sim_abort_queue(struct sim *s, struct sim_sq *sq, uint16_t status);
unsigned sim_queue_moving(struct sim *s, const struct sim_sq *sq);
void sim_forget_all(struct sim_thread *th);

/* sim_admin.c */
bool sim_admin_run(struct sim *s);

/* sim_features.c */
void sim_features_reset(struct sim_features *f);
uint32_t sim_events_wanted(const struct sim *s); /* CDW11 of the feature */

/*
 * Returned in place of a status: the DMA engine or the flusher will complete
 * the command (sim_io.c).
 */
#define SIM_MOVING 0xffffu
/* Runs one I/O command. Returns its status, or SIM_MOVING. */
uint16_t sim_io_run(struct sim_thread *th, struct sim_cmd *cmd);
/* Runs the held commands that are due; false if none was. */
bool sim_io_run_held(struct sim_thread *th, uint64_t *next_due);
/* Runs commands of one queue. There must be room for their completions. */
void sim_io_arrive(struct sim_thread *th, struct sim_cmd *const *cmds, unsigned n);
static inline struct sim_ns *sim_ns_get(struct sim *s, uint32_t nsid)
{
    return nsid >= 1 && nsid <= s->cfg.namespaces ? &s->ns[nsid - 1] : NULL;
}
/*
 * Returns the bytes of data of the command, which are 0 for a command without
 * data or with an invalid namespace.
 */
size_t sim_data_bytes(struct sim *s, const struct nvme_sqe *sqe);
static inline uint64_t sim_slba(const struct nvme_sqe *sqe)
{
    return (uint64_t)sqe->cdw11 << 32 | sqe->cdw10;
}
static inline uint32_t sim_nlb(const struct nvme_sqe *sqe)
{
    return (sqe->cdw12 & 0xffff) + 1;
}

/* sim_dptr.c: fills in th->spans and returns a status. */
uint16_t sim_spans(struct sim_thread *th, const struct nvme_sqe *sqe, size_t len);
/* Copies `bytes` from the driver to host memory. Returns a status. */
uint16_t sim_take(struct sim_thread *th, const struct nvme_sqe *sqe, void *data, size_t bytes);
/*
 * Copies `bytes` to the driver: data from `offset` on, of which `size` bytes
 * exist, and then zeros. Returns a status.
 */
uint16_t sim_give(struct sim_thread *th, const struct nvme_sqe *sqe, const void *data, size_t size,
                  uint64_t offset, size_t bytes);
/* Flips these bits of byte `at` of the data. */
void sim_flip(struct sim_thread *th, uint64_t at, unsigned char bits);
/* Returns true if data or lists of the command lie in the mapping. */
bool sim_command_reaches(struct sim_thread *th, const struct sim_cmd *cmd,
                         const struct sim_mapping *m);

/* Returns true if writes are in the volatile cache until a flush. */
static inline bool sim_is_cached(const struct sim_thread *th, const struct sim_ns *ns)
{
    return ns->track && th->s->wce;
}
static inline bool sim_syncs(const struct sim *s)
{
    bool any = false;

    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        any |= s->ns[i].syncs;
    return any;
}

/*
 * sim_copy.c: return false if the media cannot be accessed. Precondition:
 * sim_copy_guard() was called.
 */
void sim_copy_guard(void);
bool sim_copy_to_target(void *target, const void *media, size_t len);
bool sim_copy_from_target(void *media, const void *target, size_t len);

/* sim_flush.c */
/* Syncs and waits, for a shutdown or a disabled cache. Returns a status. */
uint16_t sim_flush_now(struct sim *s);
int sim_flusher_start(struct sim *s);
void sim_flusher_stop(struct sim *s);
/* Holds the command until the media is durable. Returns SIM_MOVING. */
uint16_t sim_flush_wait(struct sim_thread *th, struct sim_cmd *cmd);
/*
 * Ends a write whose data is on the media. Returns NVME_OK, or SIM_MOVING until
 * the data is durable.
 */
uint16_t sim_flush_write(struct sim_thread *th, struct sim_cmd *cmd, struct sim_ns *ns);
/* Completes the commands whose sync has ended. */
bool sim_flush_run(struct sim_thread *th);
bool sim_flush_news(struct sim_thread *th);

/* sim_cache.c: the volatile cache of a namespace with sim_ns.track. */
int sim_cache_open(struct sim_ns *ns); /* 0 or -ENOMEM; sim_cache_free() follows in any case */
int sim_cache_before_write(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_cache_durable(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_cache_flush(struct sim_ns *ns);
void sim_cache_power_cut(struct sim_ns *ns, uint64_t *rng);
void sim_cache_free(struct sim_ns *ns);

/* sim_fault.c: returns the first rule that fires, or NULL. */
const struct sim_fault *sim_fault_match(struct sim *s, const struct sim_sq *sq,
                                        const struct nvme_sqe *sqe);
void sim_hang(struct sim *s, uint64_t ns);
/* Returns true if the time of a hang has not passed. */
bool sim_still_hung(struct sim *s);
static inline bool sim_hung(struct sim *s)
{
    return atomic_load_explicit(&s->hung_until, memory_order_relaxed) && sim_still_hung(s);
}
/* Returns true if fetched commands are never executed: halted or gone. */
static inline bool sim_dead(struct sim *s)
{
    return atomic_load_explicit(&s->halted, memory_order_relaxed) ||
           atomic_load_explicit(&s->gone, memory_order_relaxed);
}
/* Returns true if no command is executed now: halted, gone or hung. */
static inline bool sim_idle(struct sim *s)
{
    return sim_dead(s) || sim_hung(s);
}

/* Posts the CQE now, or when the CQ has room. `idle` is sim_idle(). */
static SIM_HOT void sim_finish_knowing(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status,
                                       bool idle)
{
    if (cmd->dead)
        sim_command_free(th, cmd);
    else if (th->done.head == SIM_NO_COMMAND && sim_cq_has_room(cmd->sq->cq) && !idle)
        sim_complete(th, cmd, status);
    else
        sim_wait_for_room(th, cmd, status);
}

static SIM_HOT void sim_finish(struct sim_thread *th, struct sim_cmd *cmd, uint16_t status)
{
    sim_finish_knowing(th, cmd, status, sim_idle(th->s));
}

/* sim_move.c */
/*
 * Called for each device mapping, with an address in its memory and map_lock
 * held. Returns the number of the device in the DMA engine, or -EFAULT if there
 * is no engine or it cannot be used.
 */
int sim_dma_engine_attach(struct sim *s, uint64_t device);
void sim_dma_engine_detach(struct sim *s);
/* Starts the copies of a read or write, whose data is in th->spans. */
void sim_move_start(struct sim_thread *th, struct sim_cmd *cmd, const struct sim_ns *ns);
/* Polls the DMA engine; sim_move_work() completes the commands. */
void sim_move_poll(struct sim_thread *th);
bool sim_move_work(struct sim_thread *th);
void sim_move_submit(struct sim_thread *th);

#endif
