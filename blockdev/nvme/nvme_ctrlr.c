/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes a controller. */
#include <assert.h>
#include <errno.h>
#include <nvme/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"
#include "blockdev/nvme/nvme_prp.h"

#define VERSION_2_0 0x00020000u

/* Stores the reason of a failure for the caller of nvme_ctrlr_open(). */
static void ctrlr_explain(const struct nvme_opts *opts, const char *step, const char *what)
{
    reason_set(opts->why, 0, "%s: %s", step, what);
}

static void explain_status(const struct nvme_opts *opts, const char *step, uint16_t status)
{
    char what[160];

    snprintf(what, sizeof(what), "refused with status %#x, %s", status, nvme_status_text(status));
    ctrlr_explain(opts, step, what);
}

static void explain_errno(struct nvme_ctrlr *c, const struct nvme_opts *opts, const char *step,
                          int rc)
{
    if (rc == -EIO && nvme_silent(c))
        ctrlr_explain(opts, step, "its registers read all-ones, the device does not answer");
    else if (rc == -EIO && !nvme_ctrlr_alive(c))
        ctrlr_explain(opts, step, "the controller has failed (CSTS.CFS)");
    else if (rc == -ETIMEDOUT)
        ctrlr_explain(opts, step, "the controller did not answer in time");
    else if (c->admin_status)
        explain_status(opts, step, c->admin_status);
    else
        ctrlr_explain(opts, step, strerror(-rc));
}

static void set_limits(struct nvme_ctrlr *c, const struct nvme_id_facts *facts)
{
    uint64_t shutdown_ms = facts->rtd3e_us / 1000;

    c->info.quirks |= c->quirks;
    if (c->quirks & NVME_QUIRK_NO_WRITE_ZEROES)
        c->info.write_zeroes = false;
    c->info.max_transfer = c->t->physical ? NVME_PHYSICAL_MAX : NVME_PRP_MAX_LEN;
    if (facts->mdts != 0 && facts->mdts < c->info.max_transfer)
        c->info.max_transfer = (uint32_t)facts->mdts;
    if (c->quirks & NVME_QUIRK_SHORT_TRANSFERS && c->info.max_transfer > NVME_SHORT_TRANSFER)
        c->info.max_transfer = NVME_SHORT_TRANSFER;
    c->info.max_queue_depth = NVME_CAP_MQES(c->cap) + 1;
    if (c->info.max_queue_depth > NVME_MAX_DEPTH)
        c->info.max_queue_depth = NVME_MAX_DEPTH;
    if (shutdown_ms < NVME_SHUTDOWN_MS)
        shutdown_ms = NVME_SHUTDOWN_MS;
    if (shutdown_ms > NVME_SHUTDOWN_MAX_MS)
        shutdown_ms = NVME_SHUTDOWN_MAX_MS;
    c->shutdown_ms = (unsigned)shutdown_ms;
    c->watch.offered = facts->ns_events;
}

static int nvme_ctrlr_ctrlr_identify(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    static const char step[] = "Identify Controller";
    struct nvme_id_facts facts;
    const char *what;
    int rc = nvme_admin_identify_ctrlr(c, &c->info, &facts, &what);

    if (rc && what)
        ctrlr_explain(opts, step, what);
    else if (rc)
        explain_errno(c, opts, step, rc);
    else
        set_limits(c, &facts);
    return rc;
}

/*
 * Reads limits that NVMe 2.0 introduced. Earlier controllers are not asked,
 * since many count the refusal as an error; a controller that refuses has no
 * such limits. Only a dead admin queue is an error.
 */
static int ctrlr_identify_limits(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    void *page;
    int rc;

    if (c->version < VERSION_2_0)
        return 0;
    page = malloc(NVME_IDENTIFY_LEN);
    if (!page)
        return -ENOMEM;
    rc = nvme_admin_identify_page(c, NVME_CNS_CTRL_NVM, 0, page);
    if (!rc)
        nvme_parse_ctrlr_nvm(page, &c->info);
    free(page);
    if (nvme_ctrlr_healthy(c))
        return 0;
    explain_errno(c, opts, "Identify Controller, NVM command set", rc);
    return rc;
}

/*
 * Returns the number of I/O queue pairs whose doorbells the transport has
 * mapped; the first pair is the admin queue's.
 */
static unsigned queues_with_doorbells(const struct nvme_ctrlr *c)
{
    size_t pairs = c->t->doorbells_len / (2 * nvme_doorbell_stride(c)) - 1;

    return pairs < NVME_MAX_QPAIRS ? (unsigned)pairs : NVME_MAX_QPAIRS;
}

static int request_queues(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    static const char step[] = "Set Features, Number of Queues";
    unsigned wanted = queues_with_doorbells(c);
    int rc;

    if (wanted == 0) {
        ctrlr_explain(opts, step, "no doorbells for an I/O queue (CAP.DSTRD)");
        return -EPROTO;
    }
    if (opts->io_queues != 0 && opts->io_queues < wanted)
        wanted = opts->io_queues;
    c->queues_requested = wanted;
    rc = nvme_admin_set_queues(c, wanted, &c->info.io_queues);
    if (rc)
        explain_errno(c, opts, step, rc);
    return rc;
}

static int reset_and_check(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    const char *what = NULL;
    int rc;

    c->cap = c->t->ops->read(c->t, NVME_REG_CAP, 8);
    c->version = (uint32_t)c->t->ops->read(c->t, NVME_REG_VS, 4);
    rc = nvme_check_cap(c, &what);
    if (rc) {
        ctrlr_explain(opts, "capabilities", what);
        return rc;
    }
    rc = nvme_disable_any(c);
    if (rc && !nvme_silent(c) && nvme_device_reset(c) == 0)
        rc = 0;
    if (rc)
        explain_errno(c, opts, "reset (CC.EN to 0)", rc);
    return rc;
}

/* Enables the controller. If it fails, the transport resets it for a second try. */
static int ctrlr_enable(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    int rc = nvme_enable(c);

    if (rc && !nvme_silent(c) && nvme_device_reset(c) == 0)
        rc = nvme_enable(c);
    if (rc)
        explain_errno(c, opts, "enable (CC.EN to 1)", rc);
    return rc;
}

/* Stops the controller, or lets nvme_dma.c know that it could not. */
static void quiesce(struct nvme_ctrlr *c)
{
    if (!nvme_quiesce(c))
        nvme_ctrlr_fail(c, false);
}

/* Brings it up until it accepts queues; undoes its steps on an error. */
static int bring_up(struct nvme_ctrlr *c, const struct nvme_opts *opts)
{
    int rc = reset_and_check(c, opts);

    if (rc)
        return rc;
    rc = nvme_admin_setup(c);
    if (rc) {
        explain_errno(c, opts, "admin queue memory", rc);
        return rc;
    }
    rc = ctrlr_enable(c, opts);
    if (!rc)
        rc = nvme_ctrlr_ctrlr_identify(c, opts);
    if (!rc)
        rc = ctrlr_identify_limits(c, opts);
    if (!rc)
        rc = request_queues(c, opts);
    if (!rc) {
        rc = nvme_watch_start(c);
        if (rc)
            explain_errno(c, opts, "Set Features, Asynchronous Events", rc);
    }
    if (rc) {
        quiesce(c);
        nvme_admin_teardown(c);
    }
    return rc;
}

static void ctrlr_destroy(struct nvme_ctrlr *c)
{
    nvme_region_forget(c);
    pthread_mutex_destroy(&c->reset_lock);
    pthread_mutex_destroy(&c->admin_lock);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->dma_lock);
    free(c);
}

int nvme_ctrlr_open(struct nvme_transport *t, const struct nvme_opts *opts, struct nvme_ctrlr **out)
{
    static const struct nvme_opts defaults;
    struct nvme_ctrlr *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return -ENOMEM;
    if (!opts)
        opts = &defaults;
    c->t = t;
    c->quirks = nvme_quirks_of(t->pci_vendor, t->pci_device);
    c->admin_timeout_ms = opts->admin_timeout_ms ? opts->admin_timeout_ms : NVME_DEFAULT_MS;
    c->io_timeout_ms = opts->io_timeout_ms ? opts->io_timeout_ms : NVME_DEFAULT_MS;
    pthread_mutex_init(&c->reset_lock, NULL);
    pthread_mutex_init(&c->admin_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->dma_lock, NULL);
    pthread_mutex_lock(&c->admin_lock);
    rc = bring_up(c, opts);
    pthread_mutex_unlock(&c->admin_lock);
    if (rc) {
        ctrlr_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

void nvme_ctrlr_close(struct nvme_ctrlr *c)
{
    assert(LIST_EMPTY(&c->users) && "a user of the controller outlives it");
    nvme_shutdown(c);
    quiesce(c);
    nvme_dma_free_orphans(c);
    nvme_ns_forget(c);
    nvme_admin_teardown(c);
    c->t->ops->close(c->t);
    nvme_dma_free_arenas(c);
    ctrlr_destroy(c);
}
