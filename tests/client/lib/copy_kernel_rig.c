#include "tests/client/lib/copy_kernel_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/device/device_image.h"
#include "client/lib/copy_kernel.h"
#include "client/lib/socket.h"
#include "cuda/gq_mailbox.h"

#define IDLE_ROUNDS 200u /* after which a block ends */

struct copier_rig {
    struct gpunvme handle;
    struct place place;
    struct copier_rig_mount mount;
    struct copier *copier;
    struct gpunvme_ioc_copier last;
    _Atomic unsigned calls, launches;
    _Atomic bool fail;
    _Atomic int held;
    _Atomic unsigned syncs;
};

struct kernel {
    struct gq_copier_launch l;
    unsigned blocks;
};

struct stream {
    pthread_t thread;
    bool running; /* until it is joined */
};

static struct copier_rig *rig; /* one at a time: fakes find it here */

int copier_rig_open(const struct copier_rig_mount *mount, bool gpu, struct copier_rig **out)
{
    struct copier_rig *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->mount = *mount;
    snprintf(r->handle.info.transport, sizeof(r->handle.info.transport), "%s", mount->transport);
    r->place.cuda = gpu ? (struct cuda_driver *)r : NULL;
    rig = r;
    int err = copier_open(&r->handle, &r->place, &r->copier);
    if (err)
        free(r);
    else
        *out = r;
    return err;
}

void copier_rig_close(struct copier_rig *r)
{
    copier_close(r->copier);
    free(r);
}

bool copier_rig_has_copier(const struct copier_rig *r)
{
    return r->copier != NULL;
}

int copier_rig_attach(struct copier_rig *r, uint64_t id)
{
    return copier_attach(r->copier, id, id + 1);
}

void copier_rig_detach(struct copier_rig *r)
{
    copier_detach(r->copier);
}

void copier_rig_add(struct copier_rig *r, uint64_t id, uint64_t base)
{
    const struct gpunvme_buffer b = {.id = id, .key = id + 1};
    copier_add(r->copier, &b, base);
}

void copier_rig_remove(struct copier_rig *r, uint64_t id)
{
    const struct gpunvme_buffer b = {.id = id};
    copier_remove(r->copier, &b);
}

unsigned copier_rig_calls(const struct copier_rig *r, struct gpunvme_ioc_copier *last)
{
    *last = r->last;
    return r->calls;
}

unsigned copier_rig_launches(const struct copier_rig *r)
{
    return r->launches;
}

void copier_rig_fail(struct copier_rig *r, bool fail)
{
    r->fail = fail;
}

void copier_rig_sync(struct copier_rig *r)
{
    r->syncs++;
}

int copier_rig_held(const struct copier_rig *r)
{
    return r->held;
}

/* --- What the library would ask of the mount ------------------------------------------------- */

int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    (void)fd;
    if (request != GPUNVME_IOC_COPIER || size != sizeof(rig->last))
        return -ENOTTY;
    memcpy(&rig->last, arg, size);
    rig->calls++;
    return rig->mount.refusal;
}

int socket_ask(struct gpunvme *g, const struct gpunvme_ask *ask, struct gpunvme_told *told,
               int *fds, unsigned n)
{
    (void)g;
    if (ask->what != GPUNVME_ASK_COPIER || ask->key != ask->id + 1 || n != 2 || rig->mount.refusal)
        return -ENOENT;
    memcpy(told, &rig->mount.told, sizeof(*told));
    for (unsigned i = 0; i < n; i++)
        fds[i] = dup(rig->mount.fds[i]);
    return 0;
}

/* --- The place, which is this process -------------------------------------------------------- */

int place_share(const struct place *p, int fd, uint64_t offset, size_t len,
                enum place_access access, struct place_map *out)
{
    int rights = access == PLACE_READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    void *at = mmap(NULL, len, rights, MAP_SHARED, fd, (off_t)offset);
    (void)p;
    if (at == MAP_FAILED)
        return -errno;
    *out = (struct place_map){.addr = at, .len = len, .at = (uintptr_t)at};
    rig->held++;
    return 0;
}

void place_unshare(const struct place *p, struct place_map *m)
{
    (void)p;
    if (!m->addr)
        return;
    munmap(m->addr, m->len);
    *m = (struct place_map){0};
    rig->held--;
}

/* --- The driver ------------------------------------------------------------------------------ */

const void *copier_image(void)
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

/* A batch of one box, if there is a new one: as gq_copier.cu. */
static bool copy_batch(const struct gq_copier_launch *l, unsigned block, uint32_t batch)
{
    const struct gq_copier_box *box = &l->boxes[block * GQ_COPIER_BOXES + batch % GQ_COPIER_BOXES];
    uint64_t tag = GQ_COPIER_TAG(batch / GQ_COPIER_BOXES + 1);
    uint64_t head = __atomic_load_n(&box->words[0], __ATOMIC_ACQUIRE);
    if ((head & ~GQ_COPIER_VALUE) != tag)
        return false;
    copier_rig_sync(rig);
    for (unsigned i = 0; i < (head & 0xff); i++)
        memcpy((void *)(uintptr_t)(box->words[2 + 2 * i] & GQ_COPIER_VALUE),
               (const void *)(uintptr_t)(box->words[3 + 2 * i] & GQ_COPIER_VALUE),
               1ull << (head >> 8 & 0xff));
    copier_rig_sync(rig);
    __atomic_store_n(&l->done[block], batch + 1, __ATOMIC_RELEASE);
    return true;
}

static void *run_kernel(void *arg)
{
    struct kernel *k = arg;
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

int cuda_driver_launch_blocks(struct cuda_driver *cu, int device, const struct cuda_kernel *kernel,
                              unsigned blocks, unsigned threads, void *stream, void **args)
{
    struct kernel *k = malloc(sizeof(*k));
    struct stream *s = stream;
    const struct gq_copier_launch *l = args[0];
    (void)kernel;
    /* One that may not be idle for a moment would be launched for each batch. */
    if (!k || rig->fail || threads != GQ_COPIER_THREADS || l->idle_ns == 0) {
        free(k);
        return -EIO;
    }
    *k = (struct kernel){*l, blocks};
    cuda_driver_copy_wait(cu, device, stream);
    s->running = pthread_create(&s->thread, NULL, run_kernel, k) == 0;
    rig->launches++;
    return s->running ? 0 : -EAGAIN;
}
