/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon's transfers without FUSE: an image in memory, a simulated
 * controller with fault injection, one file, and memfd buffers. In C, because
 * the daemon's headers are C11.
 */
#ifndef TESTS_DAEMON_DAEMON_RIG_H
#define TESTS_DAEMON_DAEMON_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "gpunvme/gpunvme_ioctl.h"
#include "sim/sim.h"

__BEGIN_DECLS

/*
 * This is the deadline of commands in tests that lose some. Other commands, also those
 * of the mount, end before it on a busy machine.
 */
#define RIG_DEADLINE_MS 1000u

struct rig_config {
    unsigned deadline_ms; /* of a command; 0: the daemon's default */
    unsigned max_buffers; /* 0: the daemon's default */
    bool gpu_off;         /* -o gpu=off */
    bool copied;          /* no engine serves the bounce path, as without a controller */
    bool requires_gpu;    /* -o gpu=require, for transfers */
    bool bounces;         /* buffers and lists are registered for the bounce path */
    /*
     * of the drive; 0: no limit. With a limit, few and small commands are in
     * flight at a time.
     */
    uint64_t bytes_per_sec;
    bool unreachable;     /* the drive cannot reach the memory of buffers */
    uint64_t image_bytes; /* 0: 128 MiB */
    bool leases;          /* leases are permitted to every user */
    bool data_csum;       /* data has checksums */
    unsigned gpus;        /* CPU executors, each for a GPU; 0: one */
    unsigned first_gpu;   /* number of the first of them; the UUID of 0 stands for any GPU */
};

struct rig;
/* 0 or -errno. */
int rig_open(const struct rig_config *config, struct rig **out);
/*
 * The result of stack_close(): not 0 when the controller saw driver mistakes.
 */
int rig_close(struct rig *r);

struct sim *rig_sim(struct rig *r);
/* Resets the controller, as another user of it would. */
int rig_reset(struct rig *r);
/*
 * Returns the only queue of the executor, or of the bounce path without an
 * executor.
 */
uint16_t rig_gpu_queue(struct rig *r);
/*
 * After `skip` commands of the opcode on that queue so many of them (0: all) meet the fault. 0 or
 * -errno.
 */
int rig_fail(struct rig *r, enum sim_fault_kind kind, uint8_t opcode, uint16_t status,
             unsigned skip, unsigned times);
/* Writes file bytes by ffs_write(); offset may leave a hole. */
int rig_write_file(struct rig *r, uint64_t offset, const void *data, uint64_t len);
/* Sets the size of the file, and commits the change. */
int rig_truncate(struct rig *r, uint64_t size);
int rig_read_file(struct rig *r, uint64_t offset, void *data, uint64_t len);
/* Changes a bit of the file's byte at this offset on the drive. */
int rig_flip(struct rig *r, uint64_t offset);
/* One unwritten block every 8192 bytes of [from, to). */
int rig_fragment(struct rig *r, uint64_t from, uint64_t to);
uint64_t rig_free_bytes(struct rig *r);

struct rig_buffer {
    uint64_t id, key;
    unsigned char *data;
    uint64_t len;
};
int rig_register(struct rig *r, uint64_t len, uint32_t uid, struct rig_buffer *out);
/* Acts like rig_register() for the GPU with this number. */
int rig_register_on(struct rig *r, unsigned gpu, uint64_t len, uint32_t uid,
                    struct rig_buffer *out);
/* Registers memory for lists. */
int rig_register_list(struct rig *r, uint64_t len, uint32_t uid, struct rig_buffer *out);
/* Sets whether later buffers and lists are registered for the bounce path. */
void rig_set_bounces(struct rig *r, bool bounces);
int rig_unregister(struct rig *r, const struct rig_buffer *b, uint32_t uid);
/* Unmaps this side's memory. */
void rig_forget(struct rig_buffer *b);
unsigned rig_buffers(struct rig *r);
/* As at the end of the mount. */
void rig_cancel_all(struct rig *r);

/* The caller fills in rw except abi. Returns the ioctl's result. */
int rig_transfer(struct rig *r, bool write, uint32_t uid, struct gpunvme_ioc_rw *rw);
/* The same, cancelled from the start. */
int rig_transfer_cancelled(struct rig *r, bool write, struct gpunvme_ioc_rw *rw);
/* The same for READV. */
int rig_readv(struct rig *r, uint32_t uid, struct gpunvme_ioc_readv *v);
int rig_readv_cancelled(struct rig *r, struct gpunvme_ioc_readv *v);
/*
 * Leases through the one open file; out is filled in as by the ioctl. 0 or
 * -errno.
 */
int rig_lease_extents(struct rig *r, uint32_t uid, struct gpunvme_ioc_extent_lease *out);
/* The same with GPUNVME_LEASE_* in *flags, which become those of the reply. */
int rig_lease_with(struct rig *r, uint32_t *flags);
int rig_lease_queue(struct rig *r, uint32_t uid, struct gpunvme_ioc_queue_lease *out);
int rig_lease_end(struct rig *r, uint32_t uid, uint64_t id, uint64_t key);

/* The mount's view of a GPU. */
struct rig_gpu {
    bool open, lost;
    uint64_t bytes_read;
    unsigned buffers, queues;
};
struct rig_gpu rig_gpu(struct rig *r, unsigned gpu);
/* Makes each run of this GPU's executor fail from now on, or no longer. */
void rig_lose_gpu(struct rig *r, unsigned gpu, bool lost);
/* Tends the executors, as the daemon does about once a second. */
void rig_tend(struct rig *r);

/* Latencies and fallbacks alone. */
struct gpunvme_ioc_stats rig_stats(struct rig *r);
/* The bucket of a transfer that took so long. */
unsigned rig_bucket(uint64_t ns);
struct gpunvme_ioc_stats rig_stats_of_ops(void);

/* Queues out of service when the last transfer released its blocks. */
unsigned rig_quarantined(struct rig *r);
/* The last notification to the kernel; zero without one since the last call. */
struct rig_notified {
    unsigned times;
    uint64_t offset, len;
    bool grew;
    char last;
};
struct rig_notified rig_notified(void);

__END_DECLS

#endif
