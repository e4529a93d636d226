/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The DMA engine of a simulated controller copies between host memory and
 * device memory (a GPU's), which a CPU cannot dereference.
 *
 * An engine may serve several devices. Each has channels, which are independent
 * streams of copies. One thread uses a channel, without locking. Copies of one
 * submission are made in any order. A ticket is done when all bytes of its
 * submission are in place and visible to the device.
 *
 * The threads of the controller submit and poll. The threads that map and unmap
 * call the other functions; a device that such a thread has selected stays
 * selected.
 */
#ifndef SIM_SIM_DMA_ENGINE_H
#define SIM_SIM_DMA_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* An engine serves at most this many devices, which are numbered from 0. */
#define SIM_DMA_DEVICES 32u

struct sim_copy {
    void *host;      /* pinned by pin() */
    uint64_t device; /* address in the device's address space */
    size_t len;      /* bytes, any alignment */
    /*
     * Number of a pair of host and device memory. Adjacent copies of one region
     * may be joined. Those of two regions may belong to different allocations,
     * which no copy can span.
     */
    uint64_t region;
};

struct sim_dma_engine_ops {
    unsigned max_copies; /* per submission */
    /*
     * Opens the engine for the device that contains this address unless it is
     * open already. Returns the number of the device, or -errno. The simulator
     * calls it before the other functions, and again for each mapping of device
     * memory, which it refuses after an error. If open is NULL, all device
     * memory belongs to device 0.
     */
    int (*open)(void *ctx, uint64_t device);
    /*
     * Submits copies of one device. Returns 0 and a ticket, -EAGAIN if too many
     * are in flight, or another -errno if the device has failed.
     */
    int (*submit)(void *ctx, unsigned channel, bool to_device, const struct sim_copy *copies,
                  unsigned n, uint64_t *ticket);
    /* Returns 1 if done, 0 if in flight, or -errno. Tickets end in order. */
    int (*poll)(void *ctx, unsigned channel, uint64_t ticket);
    /*
     * Pins whole pages of host memory, so that copies of all devices can use
     * them. Returns 0 or -errno.
     */
    int (*pin)(void *ctx, void *addr, size_t len);
    void (*unpin)(void *ctx, void *addr);
};

struct sim_dma_engine {
    const struct sim_dma_engine_ops *ops;
    void *ctx;
    unsigned channels; /* of each device; those of device d are numbered from d * channels */
};

__END_DECLS

#endif
