/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares structures that the files of the CUDA executor share. */
#ifndef CUDA_EXEC_CUDA_GQ_CUDA_INT_H
#define CUDA_EXEC_CUDA_GQ_CUDA_INT_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>

#include "cuda/exec_cuda/gq_gate.h"
#include "cuda/exec_cuda/gq_persistent.h"
#include "cuda/gq_cuda_errno.h"
#include "cuda/gq_exec.h"
#include "support/reason.h"

struct cuda_run {
    cudaStream_t stream;
    struct gq_state *states; /* pinned: GQ_MAX_QUEUES */
    uint32_t *flags;         /* pinned: GQ_FLAG_*, forwarded from the caller and the engine */
};

/*
 * Rings registered with CUDA. This is a copy, because nvme_qpair loses its
 * rings when it is abandoned.
 */
struct cuda_rings {
    void *sq, *cq;
};

/* Holds the arguments and results of one launch, for up to 256 MiB of data. */
#define GQ_CUDA_SUMS 65536u
struct gq_cuda_sums {
    uint64_t at[GQ_CUDA_SUMS];
    uint32_t sums[GQ_CUDA_SUMS];
};

struct gq_cuda {
    struct gq_exec exec;
    int device;
    struct nvme_transport *transport;
    struct gq_persistent *persistent;
    struct gq_gate *gate;        /* of the device: gq_gate_of_device() */
    char *doorbells;             /* GPU address; NULL if not mapped */
    struct gq_port *ports;       /* device memory: GQ_MAX_QUEUES */
    struct gq_dealing *dealings; /* behind the ports; one per run */
    struct gq_port host_ports[GQ_MAX_QUEUES];
    struct cuda_rings rings[GQ_MAX_QUEUES];
    struct cuda_run runs[GQ_MAX_QUEUES];
    unsigned n_runs;
    pthread_mutex_t copy_lock; /* serialises put, get and sums on copy_stream */
    cudaStream_t copy_stream;
    struct gq_cuda_sums *sums; /* pinned; protected by copy_lock */
};

static inline struct gq_cuda *gq_cuda_of(struct gq_exec *x)
{
    return (struct gq_cuda *)x;
}

/* Returns true once a kernel on the device has not ended in time (gq_gate.h). */
static inline bool gq_cuda_stuck(const struct gq_cuda *cu)
{
    return __atomic_load_n(&cu->gate->stuck, __ATOMIC_RELAXED);
}

/*
 * gq_cuda_device.c. Creates the context. This is the first call that can fail
 * for reasons outside of the program. Returns 0, or -ENODEV with a sentence in
 * `why`.
 */
int gq_cuda_select(struct gq_cuda *cu, struct reason *why);
/*
 * gq_cuda_device.c. Looks up a function of the driver at run time: the runtime
 * lacks some, and a program linked to the driver would not start without it.
 * Returns NULL if the driver has no such function.
 */
void (*gq_cuda_driver_function(const char *name))(void);

/*
 * gq_cuda_wait.c. Waits until the run's kernels have ended. Returns 0, or -EIO
 * if the device failed or the kernels do not end (then gate->stuck is set).
 */
int gq_cuda_wait_run(struct gq_cuda *cu, const struct gq_launch *l);

/* gq_cuda_mem.c. The contracts are in gq_exec_ops. */
int gq_cuda_import(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out);
void gq_cuda_release(struct gq_exec *x, struct gq_import *imp);
int gq_cuda_staging_alloc(struct gq_exec *x, size_t len, bool host, struct gq_import *out);
void gq_cuda_staging_free(struct gq_exec *x, struct gq_import *imp);
int gq_cuda_device_page(struct gq_exec *x, struct gq_import *out);
int gq_cuda_shared_alloc(struct gq_exec *x, size_t len, void **out);
void gq_cuda_shared_free(struct gq_exec *x, void *addr);
int gq_cuda_port_add(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp);
void gq_cuda_port_remove(struct gq_exec *x, unsigned i);
/*
 * gq_cuda_vmm.c. Imports GQ_MEM_SEGMENTS: maps the segments of another process
 * one after another, for kernels of this device. Returns 0, -EINVAL (a handle
 * is not one of this device, or has another length), -ENOTSUP (the driver is
 * too old), -ENOMEM or another -errno.
 */
int gq_cuda_import_segments(const struct gq_cuda *cu, const struct gq_mem *mem,
                            struct gq_import *out);
/* Ends the mapping of gq_cuda_import_segments(). The caller frees the parts. */
void gq_cuda_release_segments(const struct gq_import *imp);
/*
 * Allocates pinned memory, which has the same address for GPU and host. Returns
 * 0, -ENOMEM or -EIO.
 */
int gq_cuda_alloc_pinned(void **out, size_t len);
/*
 * Maps the doorbells for the GPU, or stores in exec.note why the GPU does not
 * store to them. Returns 0, or -ENOTSUP if direct doorbells are required and
 * cannot be mapped.
 */
int gq_cuda_map_doorbells(struct gq_cuda *cu, enum gq_doorbells want);
void gq_cuda_unmap_doorbells(struct gq_cuda *cu);

#endif
