/* SPDX-License-Identifier: BSD-2-Clause */
/* Creates, resets and closes the transport of the simulated controller. */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/sim_internal.h"

/*
 * Upper bound of the duration of a sync: 10 GB of dirty pages at 17 MB/s. A
 * request during a sync also waits for the next sync.
 */
#define SYNC_MS    600000u
#define DURABLE_MS (2 * SYNC_MS)

/*
 * Sets the registers to their state after a function level reset. The threads
 * are paused, except at creation.
 */
static void registers_clear(struct sim *s)
{
    s->aqa = 0;
    s->asq = s->acq = 0;
    s->shst = 0;
    s->stuck = false;
    atomic_store(&s->cc, 0);
    sim_controller_stop(s);
    sim_keep_queues(s, false);
}

static int transport_reset(struct nvme_transport *t)
{
    struct sim *s = sim_of(t);

    if (s->cfg.no_reset)
        return -ENOTSUP;
    if (atomic_load(&s->gone))
        return -EIO;
    pthread_mutex_lock(&s->reg_lock);
    sim_pause(s);
    registers_clear(s);
    sim_resume(s);
    pthread_mutex_unlock(&s->reg_lock);
    return sim_drain(s) == 0 ? 0 : -EIO;
}

static void doorbells_close(struct sim *s)
{
    munmap((void *)s->doorbells, s->doorbells_len);
    close(s->doorbells_fd);
    s->doorbells = NULL;
    s->doorbells_fd = -1;
}

static void transport_close(struct nvme_transport *t)
{
    struct sim *s = sim_of(t);

    pthread_mutex_lock(&s->reg_lock);
    if ((atomic_load(&s->cc) & NVME_CC_ENABLE) && !atomic_load(&s->gone))
        sim_flag(s, SIM_EV_CLOSED_ENABLED, "CC.EN is 1");
    sim_disable(s);
    sim_pause(s);
    sim_keep_queues(s, false);
    sim_resume(s);
    pthread_mutex_unlock(&s->reg_lock);
    sim_drain(s);
    sim_threads_stop(s);
    sim_unmap_all(s);
    doorbells_close(s);
    close(t->removal_fd);
    t->ops = NULL; /* a later call of the caller crashes */
    s->attached = false;
}

static const struct nvme_transport_ops transport_ops = {
    .name = "sim",
    .read = sim_reg_read,
    .write = sim_reg_write,
    .map = sim_map,
    .unmap = sim_unmap,
    .reset = transport_reset,
    .wake = sim_expect,
    .kick = sim_kick_queue,
    .keep_polling = sim_keep_polling,
    .submitted = sim_submitted,
    .close = transport_close,
};

/*
 * A driver in another process maps the doorbells as well, and the seal prevents
 * it from shrinking them. They have the same offset in the file as in BAR0.
 */
static int make_doorbells(struct sim *s, int fd)
{
    if (ftruncate(fd, (off_t)(NVME_REG_DOORBELLS + s->doorbells_len)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return -errno;
    void *p =
        mmap(NULL, s->doorbells_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, NVME_REG_DOORBELLS);
    if (p == MAP_FAILED)
        return -errno;
    s->doorbells = p;
    s->doorbells_fd = fd;
    return 0;
}

static int transport_map_doorbells(struct sim *s)
{
    int fd = memfd_create("sim-doorbells", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    int rc = make_doorbells(s, fd);
    if (rc)
        close(fd);
    return rc;
}

static void reset_all(struct sim *s)
{
    for (size_t w = 0; w < s->doorbells_len / sizeof(uint32_t); w++)
        atomic_store(&s->seen[w], 0);
    for (unsigned q = 0; q <= s->cfg.io_queues; q++) {
        s->sqs[q].doorbell = &s->doorbells[sim_doorbell_word(s, q, false)];
        s->cqs[q].doorbell = &s->doorbells[sim_doorbell_word(s, q, true)];
    }
    atomic_store(&s->gone, false);
    registers_clear(s);
}

int sim_transport_create(struct sim *s)
{
    int removal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = removal_fd < 0 ? -errno : transport_map_doorbells(s);

    if (rc) {
        if (removal_fd >= 0)
            close(removal_fd);
        return rc;
    }
    reset_all(s);
    s->t = (struct nvme_transport){
        .ops = &transport_ops,
        .doorbells = (volatile uint32_t *)(void *)s->doorbells,
        .doorbells_len = s->doorbells_len,
        .copies_device_memory = true,
        .doorbells_fd = s->doorbells_fd,
        .doorbells_fd_offset = NVME_REG_DOORBELLS,
        .removal_fd = removal_fd,
        .durable_ms = sim_syncs(s) ? DURABLE_MS : 0,
    };
    s->attached = true;
    return 0;
}

void sim_request_close(struct sim *s)
{
    if (s->attached)
        eventfd_write(s->t.removal_fd, 1);
}

int sim_doorbells_fd(const struct sim *s)
{
    return s->doorbells_fd;
}
