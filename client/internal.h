/* What the files of libgpunvme share. */
#ifndef CLIENT_INTERNAL_H
#define CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "client/cuda_driver.h"
#include "client/error.h"
#include "client/gpunvme.h"

struct gpunvme {
    int fd; /* directory on the mount: the open file description that owns the buffers */
    struct gpunvme_ioc_info info; /* as of gpunvme_connect() */
    pthread_mutex_t lock;         /* protects cuda (set once) and buffers */
    struct cuda_driver *cuda;
    struct gpunvme_buffer *buffers;
};

struct gpunvme_buffer {
    struct gpunvme *owner;
    struct gpunvme_buffer *next, **link; /* in owner->buffers */
    uint64_t id, key;
    void *addr;
    size_t len;
    int device;     /* CUDA ordinal, or CUDA_NO_DEVICE for host memory */
    int fd;         /* memfd behind host memory, or -1 */
    bool allocated; /* by gpunvme_alloc() */
};

/* ioctl(2) with the ABI header filled in: 0 or -errno. */
int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size);

#endif
