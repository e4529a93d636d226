/* SPDX-License-Identifier: BSD-2-Clause */
/* The keeper of the copy kernel, with a driver and a mount that are fakes. */
#include "tests/client/lib/copy_kernel_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/device/device_image.h"
#include "client/lib/copy_kernel.h"
#include "client/lib/socket.h"
#include "sim/gpu/sim_mailbox.h"

#define IDLE_ROUNDS 200u /* rounds without work after which a block ends */

struct copy_kernel_rig {
    struct gpunvme handle;
    struct memory_space space;
    struct copy_kernel_rig_mount mount;
    struct copy_kernel *copy_kernel;
    struct gpunvme_ioc_copy_kernel last;
    _Atomic unsigned calls, launches;
    _Atomic bool fail;
    _Atomic int held;
    _Atomic unsigned syncs;
};

struct kernel {
    struct sim_copy_kernel_launch l;
    unsigned blocks;
};

struct stream {
    pthread_t thread;
    bool running; /* true until joined */
};

static struct copy_kernel_rig *rig; /* the only one: used by the fakes */

int copy_kernel_rig_open(const struct copy_kernel_rig_mount *mount, bool gpu,
                         struct copy_kernel_rig **out)
{
    struct copy_kernel_rig *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->mount = *mount;
    snprintf(r->handle.info.transport, sizeof(r->handle.info.transport), "%s", mount->transport);
    r->space.cuda = gpu ? (struct cuda_driver *)r : NULL;
    rig = r;
    int err = copy_kernel_open(&r->handle, &r->space, &r->copy_kernel);
    if (err)
        free(r);
    else
        *out = r;
    return err;
}

void copy_kernel_rig_close(struct copy_kernel_rig *r)
{
    copy_kernel_close(r->copy_kernel);
    free(r);
}

bool copy_kernel_rig_has_copy_kernel(const struct copy_kernel_rig *r)
{
    return r->copy_kernel != NULL;
}

int copy_kernel_rig_attach(struct copy_kernel_rig *r, uint64_t id)
{
    return copy_kernel_attach(r->copy_kernel, id, id + 1);
}

void copy_kernel_rig_detach(struct copy_kernel_rig *r)
{
    copy_kernel_detach(r->copy_kernel);
}

void copy_kernel_rig_add(struct copy_kernel_rig *r, uint64_t id, uint64_t base)
{
    const struct gpunvme_buffer b = {.id = id, .key = id + 1};

    copy_kernel_add(r->copy_kernel, &b, base);
}

void copy_kernel_rig_remove(struct copy_kernel_rig *r, uint64_t id)
{
    const struct gpunvme_buffer b = {.id = id};

    copy_kernel_remove(r->copy_kernel, &b);
}

unsigned copy_kernel_rig_calls(const struct copy_kernel_rig *r,
                               struct gpunvme_ioc_copy_kernel *last)
{
    *last = r->last;
    return r->calls;
}

unsigned copy_kernel_rig_launches(const struct copy_kernel_rig *r)
{
    return r->launches;
}

void copy_kernel_rig_fail(struct copy_kernel_rig *r, bool fail)
{
    r->fail = fail;
}

void copy_kernel_rig_sync(struct copy_kernel_rig *r)
{
    r->syncs++;
}

int copy_kernel_rig_held(const struct copy_kernel_rig *r)
{
    return r->held;
}

/*
 * --- The mount
 * -----------------------------------------------------------------
 */

int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    (void)fd;
    if (request != GPUNVME_IOC_COPY_KERNEL || size != sizeof(rig->last))
        return -ENOTTY;
    memcpy(&rig->last, arg, size);
    rig->calls++;
    return rig->mount.refusal;
}

int socket_request(struct gpunvme *g, const struct gpunvme_request *request,
                   struct gpunvme_reply *reply, int *fds, unsigned n)
{
    (void)g;
    if (request->what != GPUNVME_ASK_COPY_KERNEL || request->key != request->id + 1 || n != 2 ||
        rig->mount.refusal)
        return -ENOENT;
    memcpy(reply, &rig->mount.reply, sizeof(*reply));
    for (unsigned i = 0; i < n; i++)
        fds[i] = dup(rig->mount.fds[i]);
    return 0;
}

/*
 * --- The memory space, which is this process
 * -----------------------------------
 */

int memory_space_share(const struct memory_space *p, int fd, uint64_t offset, size_t len,
                       enum memory_space_access access, struct memory_space_map *out)
{
    int rights = access == MEMORY_SPACE_READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    void *at = mmap(NULL, len, rights, MAP_SHARED, fd, (off_t)offset);

    (void)p;
    if (at == MAP_FAILED)
        return -errno;
    *out = (struct memory_space_map){.addr = at, .len = len, .at = (uintptr_t)at};
    rig->held++;
    return 0;
}

void memory_space_unshare(const struct memory_space *p, struct memory_space_map *m)
{
    (void)p;
    if (!m->addr)
        return;
    munmap(m->addr, m->len);
    *m = (struct memory_space_map){0};
    rig->held--;
}

/* --- The driver ------------------------------------------------------------------------------ */

const void *copy_kernel_image(void)
{
    return "an image";
}

int cuda_driver_load(struct cuda_driver *cu, int device, const void *image, const char *name,
                     struct cuda_kernel *out)
{
    (void)cu;
    (void)device;
    (void)image;
    (void)name;
    out->module = out;
    rig->held++;
    return 0;
}

void cuda_driver_unload(struct cuda_driver *cu, int device, struct cuda_kernel *kernel)
{
    (void)cu;
    (void)device;
    rig->held -= kernel->module != NULL;
    kernel->module = NULL;
}

int cuda_driver_stream_urgent(struct cuda_driver *cu, int device, void **stream)
{
    (void)cu;
    (void)device;
    *stream = calloc(1, sizeof(struct stream));
    rig->held++;
    return *stream ? 0 : -ENOMEM;
}

int cuda_driver_copy_wait(struct cuda_driver *cu, int device, void *stream)
{
    struct stream *s = stream;

    (void)cu;
    (void)device;
    if (s->running)
        pthread_join(s->thread, NULL);
    s->running = false;
    return 0;
}

void cuda_driver_stream_free(struct cuda_driver *cu, int device, void *stream)
{
    (void)cu;
    (void)device;
    free(stream);
    rig->held--;
}

/* Copies the batch of a slot, if it is new, as sim_copy_kernel.cu does. */
static bool copy_batch(const struct sim_copy_kernel_launch *l, unsigned block, uint32_t batch)
{
    const struct sim_copy_slot *slot =
        &l->slots[block * SIM_COPY_KERNEL_SLOTS + batch % SIM_COPY_KERNEL_SLOTS];
    uint64_t tag = SIM_COPY_KERNEL_TAG(batch / SIM_COPY_KERNEL_SLOTS + 1);
    uint64_t head = __atomic_load_n(&slot->words[0], __ATOMIC_SEQ_CST);

    if ((head & ~SIM_COPY_KERNEL_VALUE) != tag)
        return false;
    copy_kernel_rig_sync(rig);
    for (unsigned i = 0; i < (head & 0xff); i++)
        memcpy((void *)(uintptr_t)(slot->words[2 + 2 * i] & SIM_COPY_KERNEL_VALUE),
               (const void *)(uintptr_t)(slot->words[3 + 2 * i] & SIM_COPY_KERNEL_VALUE),
               1ull << (head >> 8 & 0xff));
    copy_kernel_rig_sync(rig);
    __atomic_store_n(&l->done[block], batch + 1, __ATOMIC_RELEASE);
    return true;
}

static void *run_kernel(void *arg)
{
    struct kernel *k = arg;

    for (unsigned b = 0; b < k->blocks; b++) {
        if (k->l.launch[b])
            __atomic_store_n(&k->l.started[b], k->l.launch[b], __ATOMIC_SEQ_CST);
    }
    for (unsigned idle = 0; idle < IDLE_ROUNDS; idle++) {
        for (unsigned b = 0; b < k->blocks; b++) {
            if (k->l.launch[b] && copy_batch(&k->l, b, k->l.first[b])) {
                k->l.first[b]++;
                idle = 0;
            }
        }
        sched_yield();
    }
    for (unsigned b = 0; b < k->blocks; b++) {
        if (k->l.launch[b])
            __atomic_store_n(&k->l.ended[b], k->l.launch[b], __ATOMIC_RELEASE);
    }
    free(k);
    return NULL;
}

/* Signals are for the application's threads. */
static bool takes_signals(void)
{
    sigset_t blocked;

    return pthread_sigmask(SIG_SETMASK, NULL, &blocked) != 0 || !sigismember(&blocked, SIGTERM);
}

int cuda_driver_launch_blocks(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                              unsigned blocks, unsigned threads, void *stream, void **args)
{
    struct kernel *k = malloc(sizeof(*k));
    struct stream *s = stream;
    const struct sim_copy_kernel_launch *l = args[0];

    (void)kernel;
    /* With an idle time of 0 each batch would take a launch. */
    if (!k || rig->fail || threads != SIM_COPY_KERNEL_THREADS || l->idle_ns == 0 ||
        takes_signals()) {
        free(k);
        return -EIO;
    }
    *k = (struct kernel){*l, blocks};
    cuda_driver_copy_wait(cu, device, stream);
    s->running = pthread_create(&s->thread, NULL, run_kernel, k) == 0;
    rig->launches++;
    return s->running ? 0 : -EAGAIN;
}
