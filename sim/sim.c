/* SPDX-License-Identifier: BSD-2-Clause */
/* Creates, attaches and stops the simulated controller. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_internal.h"
#include "support/page.h"
#include "support/processors.h"

#define RED_HAT 0x1b36u /* PCI vendor of QEMU's controller */

static unsigned or_default(unsigned v, unsigned d)
{
    return v ? v : d;
}

static int sim_check_config(struct sim_config *c)
{
    c->namespaces = or_default(c->namespaces, 1);
    c->threads = or_default(c->threads, 1);
    c->io_queues = or_default(c->io_queues, SIM_IO_QUEUES);
    c->max_depth = or_default(c->max_depth, 4096);
    c->mdts = or_default(c->mdts, 1u << 20);
    c->pci_vendor = (uint16_t)or_default(c->pci_vendor, RED_HAT);
    if (c->namespaces > SIM_MAX_NAMESPACES || c->threads > SIM_MAX_THREADS)
        return -EINVAL;
    if (c->io_queues > 4095 || c->max_depth < 2 || c->max_depth > 65536 || c->doorbell_stride > 8 ||
        c->vectors > SIM_MAX_VECTORS)
        return -EINVAL;
    /* The MDTS field is a power of two of pages; 0 means no limit. */
    if (c->mdts < 2 * NVME_PAGE_SIZE || (c->mdts & (c->mdts - 1)) ||
        c->mdts / NVME_PAGE_SIZE >= SIM_MAX_SPANS)
        return -EINVAL;
    return 0;
}

static void free_thread(struct sim_thread *th)
{
    free(th->commands);
    free(th->free);
    free(th->heap);
    free(th->spans);
    free(th->sqs);
    pthread_mutex_destroy(&th->lock);
}

static int init_thread(struct sim *s, struct sim_thread *th, unsigned index)
{
    pthread_mutex_init(&th->lock, NULL);
    th->s = s;
    th->index = index;
    th->rng = s->cfg.seed + index;
    th->commands = aligned_alloc(SIM_CACHE_LINE, SIM_COMMANDS * sizeof(*th->commands));
    th->free = calloc(SIM_COMMANDS, sizeof(struct sim_cmd *));
    th->heap = calloc(SIM_COMMANDS, sizeof(*th->heap));
    th->spans = calloc(SIM_MAX_SPANS, sizeof(*th->spans));
    th->sqs = calloc(s->cfg.io_queues, sizeof(struct sim_sq *));
    if (!th->commands || !th->free || !th->heap || !th->spans || !th->sqs)
        return -ENOMEM;
    sim_commands_reset(th);
    return 0;
}

static int init_threads(struct sim *s)
{
    int rc = 0;

    s->threads = aligned_alloc(SIM_CACHE_LINE, s->cfg.threads * sizeof(*s->threads));
    if (!s->threads)
        return -ENOMEM;
    memset(s->threads, 0, s->cfg.threads * sizeof(*s->threads));
    for (; rc == 0 && s->n_threads < s->cfg.threads; s->n_threads++)
        rc = init_thread(s, &s->threads[s->n_threads], s->n_threads);
    return rc;
}

/* Allocates zeroed memory on cache lines of its own: threads write to it. */
static void *alloc_lines(size_t bytes)
{
    void *p = aligned_alloc(SIM_CACHE_LINE, bytes);

    return p ? memset(p, 0, bytes) : NULL;
}

static int init_queues(struct sim *s)
{
    unsigned n = s->cfg.io_queues + 1;
    size_t bytes = (size_t)(2 * n) << (2 + s->cfg.doorbell_stride);

    s->doorbells_len = page_whole(bytes);
    s->seen = alloc_lines(s->doorbells_len);
    s->owner = calloc(2 * n, sizeof(*s->owner));
    s->admin_spans = calloc(SIM_MAX_SPANS, sizeof(*s->admin_spans));
    s->sqs = alloc_lines(n * sizeof(*s->sqs));
    s->cqs = alloc_lines(n * sizeof(*s->cqs));
    if (!s->seen || !s->owner || !s->admin_spans || !s->sqs || !s->cqs)
        return -ENOMEM;
    for (unsigned q = 0; q < n; q++) {
        s->sqs[q].id = s->cqs[q].id = (uint16_t)q;
        s->sqs[q].cids = calloc(65536 / 64, sizeof(uint64_t));
        if (!s->sqs[q].cids)
            return -ENOMEM;
    }
    return 0;
}

static int open_media(struct sim *s)
{
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        struct sim_ns *ns = &s->ns[i];
        int rc = sim_media_open(ns, &s->cfg.ns[i]);

        if (rc)
            return rc;
        ns->track = s->cfg.track_cache && !s->cfg.no_volatile_cache && !ns->read_only;
        ns->syncs = s->cfg.flush_to_disk && ns->is_file && !ns->in_memory && !ns->read_only;
        rc = ns->track ? sim_cache_open(ns) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static void sim_destroy(struct sim *s)
{
    sim_flusher_stop(s);
    sim_interrupts_free(&s->interrupts);
    sim_reserve_close(s);
    for (unsigned i = 0; i < SIM_MAX_NAMESPACES; i++) {
        sim_cache_free(&s->ns[i]);
        sim_media_close(&s->ns[i]);
        pthread_mutex_destroy(&s->ns[i].lock);
    }
    for (unsigned i = 0; i < s->n_threads; i++)
        free_thread(&s->threads[i]);
    for (unsigned q = 0; s->sqs && q <= s->cfg.io_queues; q++)
        free(s->sqs[q].cids);
    free(s->threads);
    free(s->sqs);
    free(s->cqs);
    free(s->owner);
    free(s->admin_spans);
    free(s->seen);
    free(s->iova.at);
    pthread_mutex_destroy(&s->reg_lock);
    pthread_mutex_destroy(&s->map_lock);
    pthread_mutex_destroy(&s->gate_lock);
    pthread_mutex_destroy(&s->event_lock);
    for (unsigned i = 0; i < SIM_MAX_THREADS; i++)
        pthread_mutex_destroy(&s->channel_locks[i]);
    free(s);
}

static struct sim *new_sim(const struct sim_config *cfg)
{
    struct sim *s = aligned_alloc(SIM_CACHE_LINE, sizeof(*s));

    if (!s)
        return NULL;
    memset(s, 0, sizeof(*s));
    s->cfg = *cfg;
    s->doorbells_fd = -1;
    s->reservations.fd = -1;
    s->admin_due = UINT64_MAX;
    pthread_mutex_init(&s->reg_lock, NULL);
    pthread_mutex_init(&s->map_lock, NULL);
    pthread_mutex_init(&s->gate_lock, NULL);
    pthread_mutex_init(&s->event_lock, NULL);
    for (unsigned i = 0; i < SIM_MAX_THREADS; i++)
        pthread_mutex_init(&s->channel_locks[i], NULL);
    for (unsigned i = 0; i < SIM_MAX_NAMESPACES; i++) {
        pthread_mutex_init(&s->ns[i].lock, NULL);
        s->ns[i].fd = -1;
    }
    /* Polling needs a spare core; without one it delays the driver. */
    s->spin_us = processors_allowed() > cfg->threads + 2 ? SIM_SPIN_US : SIM_SPIN_FEW_US;
    return s;
}

int sim_attach(struct sim *s, struct nvme_transport **transport)
{
    if (s->attached)
        return -EBUSY;
    int rc = sim_transport_create(s);
    if (rc)
        return rc;
    rc = sim_threads_start(s);
    if (rc) {
        s->t.ops->close(&s->t);
        return rc;
    }
    *transport = &s->t;
    return 0;
}

int sim_create(const struct sim_config *cfg, struct sim **out, struct nvme_transport **transport)
{
    struct sim_config c = *cfg;
    int rc = sim_check_config(&c);

    if (rc)
        return rc;
    struct sim *s = new_sim(&c);
    if (!s)
        return -ENOMEM;
    s->delays = c.latency_ns || c.bytes_per_sec || c.reorder;
    rc = sim_interrupts_init(&s->interrupts, c.vectors);
    if (rc == 0)
        rc = init_threads(s);
    if (rc == 0)
        rc = init_queues(s);
    if (rc == 0)
        rc = open_media(s);
    if (rc == 0)
        rc = sim_reserve_open(s);
    if (rc == 0)
        rc = sim_flusher_start(s);
    if (rc == 0)
        rc = sim_attach(s, transport);
    if (rc) {
        sim_destroy(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sim_free(struct sim *s)
{
    if (!s)
        return;
    assert(!s->attached);
    sim_destroy(s);
}

/* Stops the controller permanently. Returns false if there was none. */
static bool sim_cut_off(struct sim *s)
{
    pthread_mutex_lock(&s->reg_lock);
    sim_pause(s);
    bool connected = s->attached;
    atomic_store(&s->gone, true);
    if (connected)
        sim_controller_stop(s);
    sim_resume(s);
    pthread_mutex_unlock(&s->reg_lock);
    return connected;
}

int sim_power_cut(struct sim *s, uint64_t seed)
{
    if (!s->cfg.track_cache)
        return -EINVAL;
    int rc = sim_cut_off(s) ? sim_drain(s) : 0;
    sim_pause(s);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (s->ns[i].track)
            sim_cache_power_cut(&s->ns[i], &seed);
    sim_resume(s);
    return rc;
}

void sim_remove(struct sim *s)
{
    sim_cut_off(s);
}

int sim_peek(struct sim *s, uint32_t nsid, uint64_t offset, void *buf, size_t len)
{
    struct sim_ns *ns = sim_ns_get(s, nsid);

    if (!ns)
        return -EINVAL;
    uint64_t bytes = ns->lbas << ns->lba_shift;
    if (offset > bytes || len > bytes - offset)
        return -EINVAL;
    sim_pause(s);
    memcpy(buf, ns->base + offset, len);
    sim_resume(s);
    return 0;
}
