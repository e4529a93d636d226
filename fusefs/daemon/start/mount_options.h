/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the parsed command line of the daemon. */
#ifndef FUSEFS_DAEMON_START_MOUNT_OPTIONS_H
#define FUSEFS_DAEMON_START_MOUNT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include "blockdev/bd_reserve.h"
#include "blockdev/device.h"
#include "cuda/gq.h"
#include "fusefs/daemon/base/metrics_server.h"

__BEGIN_DECLS

/* Describes a GPU that the option gpus= names. */
struct gpu_name {
    bool by_uuid;
    uint8_t uuid[16]; /* with by_uuid */
    unsigned ordinal; /* otherwise: CUDA's ordinal in the daemon */
};
#define GPUS_MAX        32u
#define GPU_ORDINAL_MAX 255u

/* Exit statuses are those of mount(8). */
#define EXIT_USAGE  1
#define EXIT_SYSTEM 2
#define EXIT_MOUNT  32

#define COMMIT_S_MAX   3600                /* limit of commit= */
#define SCRUB_RATE_MAX (UINT64_C(1) << 40) /* limit of scrub= */

enum gpu_policy {
    GPU_AUTO = 0, /* any executor; without one, the bounce path */
    GPU_REQUIRE,  /* the CUDA executor, or the mount fails */
    GPU_OFF,      /* no executor: every transfer takes the bounce path */
};

/*
 * Follows enum gq_executor_kind. The CPU executor treats buffers as GPU memory
 * that the controller cannot reach (tests).
 */
#define EXECUTOR_CPU_STAGED 3u

enum p2p_policy {
    P2P_AUTO = 0, /* follows enum gq_p2p */
    P2P_OFF,
    P2P_REQUIRE, /* the drive reaches GPU memory, or the mount fails */
};

enum direct_policy {
    DIRECT_NONE = 0, /* leases are refused */
    DIRECT_ROOT,
    DIRECT_GROUP, /* members of options.direct_group, and root */
    DIRECT_ALL,
};

/* The type of the mount: see block_mount.h. */
enum block_policy {
    BLOCK_AUTO = 0, /* fuseblk where root mounts and the kernel permits it */
    BLOCK_REQUIRE,  /* fuseblk, or the mount fails */
    BLOCK_OFF,      /* fuse */
};

/* See sandbox.h. */
enum sandbox_level {
    SANDBOX_AUTO = 0,
    SANDBOX_NONE,
    SANDBOX_PRIVILEGES,
    SANDBOX_CAPS,
    SANDBOX_FILES,
    SANDBOX_FULL,
};

/*
 * Bits of options.given. A remount leaves options that are not given unchanged.
 */
#define OPTIONS_GIVEN_ACCESS    1u
#define OPTIONS_GIVEN_COMMIT    2u
#define OPTIONS_GIVEN_DISCARD   4u
#define OPTIONS_GIVEN_READ_ONLY 8u
#define OPTIONS_GIVEN_SCRUB     16u

struct options {
    char *device;                   /* as given, with an absolute path */
    struct bd_name name;            /* parsed from device; holds the namespace to mount */
    char *mountpoint;               /* as given, then made absolute by session_check_mountpoint() */
    unsigned gpu;                   /* enum gpu_policy */
    unsigned executor;              /* enum gq_executor_kind, or EXECUTOR_CPU_STAGED */
    unsigned doorbells;             /* enum gq_doorbells */
    unsigned p2p;                   /* enum p2p_policy */
    unsigned direct;                /* enum direct_policy */
    unsigned block;                 /* enum block_policy */
    unsigned sandbox;               /* enum sandbox_level */
    unsigned mmp;                   /* enum ffs_mmp_policy */
    unsigned reservation;           /* enum bd_reserve */
    gid_t direct_group;             /* with DIRECT_GROUP */
    struct metrics_address metrics; /* len 0: not requested */
    int metrics_listener;           /* socket of session_listen(), if requested */
    int descriptor_listener;        /* socket of session_listen() */
    int mountinfo;                  /* of /proc/self, opened before the sandbox, or -1 */
    struct gpu_name gpus[GPUS_MAX]; /* n_gpus of them; 0: all that the daemon sees */
    unsigned n_gpus;
    unsigned nsid;          /* 0: not given */
    unsigned queues, depth; /* of the executor; 0 selects its default */
    unsigned max_buffers;
    unsigned deadline_ms;
    unsigned ctrl_loss_s; /* longest wait of a reset for a silent vfio-user server */
    unsigned commit_s;
    unsigned cache_mib; /* 0: depends on the machine's memory */
    unsigned attr_timeout_s, entry_timeout_s;
    uint64_t scrub_rate; /* of the background scrub, in bytes per second; 0: none */
    /*
     * PCI addresses of ivshmem devices whose memory stands for that of GPUs
     * (tests).
     */
    char *cpu_memories[GQ_CPU_MEMORIES];
    unsigned n_cpu_memories;
    char *drive_options; /* of a drive in this process, which parses them; NULL: none */
    unsigned access;     /* enum ffs_access */
    bool read_only;
    bool discard;
    unsigned given;                       /* OPTIONS_GIVEN_* */
    unsigned long set_flags, clear_flags; /* MS_NOSUID and the like, for a remount */
    /* 0 or 1, of the type that fuse_opt_parse() sets. */
    unsigned trace; /* records the daemon's activity */
    unsigned writeback_cache;
    unsigned dir32;
    unsigned remount; /* changes a mount: remount.h */
    unsigned noiommu;
    unsigned foreground, debug;
    unsigned help, version;
    unsigned named;        /* fsname= was given */
    unsigned typed;        /* subtype= was given */
    unsigned audience;     /* allow_other or allow_root was given */
    struct reason problem; /* after options_parse() has failed */
};

struct fuse_args;

/*
 * Consumes the options of gpunvmefs in args. Keeps those of libfuse and adds
 * the ones that every mount uses. Returns 0, or -EINVAL with one line in
 * opts->problem.
 */
int options_parse(struct options *opts, struct fuse_args *args);
void options_free(struct options *opts);
void options_print_help(void);
/* Prints the words that may be the last one of a command line (option_words.h). */
void options_complete(int n, char **words);

__END_DECLS

#endif
