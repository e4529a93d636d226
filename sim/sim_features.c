/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements Set and Get Features (BASE 5.27 and 5.15, NVM 4.1.3). No feature
 * is saved.
 */
#include <nvme/types.h>
#include <string.h>

#include "sim/sim_admin.h"

#define SAVE              (1u << 31) /* CDW10.SV */
#define SELECT            0x700u     /* CDW10.SEL: 0 is the current value */
#define ALL_SENSORS       0xfu
#define UNDER_TEMPERATURE 1u
#define NO_COALESCING     (1u << 16) /* of a vector: CDW11.CD */
#define ARBITRATION_NOMAX 7u

/* Features whose value is only kept. The value has no bits but those of the mask. */
static const struct {
    uint8_t fid;
    uint32_t mask, initial;
} kept[] = {
    {NVME_FEAT_FID_ARBITRATION, 0xffffff07, ARBITRATION_NOMAX},
    {NVME_FEAT_FID_POWER_MGMT, 0xe0, 0}, /* power state 0 is the only one */
    {NVME_FEAT_FID_ERR_RECOVERY, 0xffff, 0},
    {NVME_FEAT_FID_IRQ_COALESCE, 0xffff, 0},
    {NVME_FEAT_FID_WRITE_ATOMIC, 1, 0},
    {NVME_FEAT_ASYNC_EVENTS, 0xff | NVME_EVENT_NS_CHANGED, 0},
};

#define KEPT (sizeof(kept) / sizeof(kept[0]))
static_assert(KEPT == SIM_KEPT_FEATURES, "a value for each");

static int features_find(uint32_t fid)
{
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i].fid == fid)
            return (int)i;
    return -1;
}

void sim_features_reset(struct sim_features *f)
{
    memset(f, 0, sizeof(*f));
    for (size_t i = 0; i < KEPT; i++)
        f->kept[i] = kept[i].initial;
    f->over_kelvin = SIM_WARNING_KELVIN;
}

uint32_t sim_events_wanted(const struct sim *s)
{
    return s->features.kept[features_find(NVME_FEAT_ASYNC_EVENTS)];
}

static bool any_io_queue(const struct sim *s)
{
    for (unsigned q = 1; q <= s->cfg.io_queues; q++)
        if (s->cqs[q].ring || s->cqs[q].kept)
            return true;
    return false;
}

/* --- Each function sets one feature, or returns its value ------------------------------------- */

static uint16_t features_queues(struct admin *a, bool set)
{
    uint32_t sqs = a->sqe->cdw11 & 0xffff, cqs = a->sqe->cdw11 >> 16;

    if (set && (sqs == 0xffff || cqs == 0xffff))
        return NVME_ERR_INVALID_FIELD;
    if (set && any_io_queue(a->s))
        return NVME_ERR_SEQUENCE;
    uint32_t want = (sqs < cqs ? sqs : cqs) + 1;
    if (set)
        a->s->granted = want < a->s->cfg.io_queues ? want : a->s->cfg.io_queues;
    a->result = (a->s->granted - 1) | (a->s->granted - 1) << 16;
    return NVME_OK;
}

static uint16_t features_cache(struct admin *a, bool set)
{
    if (!set)
        a->result = a->s->wce;
    else
        a->s->wce = a->sqe->cdw11 & 1;
    return set && !a->s->wce ? sim_flush_now(a->s) : NVME_OK;
}

/* The composite temperature is the only sensor. CDW11 selects its upper or lower threshold. */
static uint16_t features_threshold(struct admin *a, bool set)
{
    uint32_t sensor = a->sqe->cdw11 >> 16 & 0xf, kind = a->sqe->cdw11 >> 20 & 3;
    struct sim_features *f = &a->s->features;
    uint16_t *kelvin = kind == UNDER_TEMPERATURE ? &f->under_kelvin : &f->over_kelvin;

    if ((sensor && !(set && sensor == ALL_SENSORS)) || kind > UNDER_TEMPERATURE ||
        a->sqe->cdw11 >> 22)
        return NVME_ERR_INVALID_FIELD;
    if (set)
        *kelvin = (uint16_t)a->sqe->cdw11;
    else
        a->result = *kelvin;
    return NVME_OK;
}

/* Vector 0 exists even without MSI-X. */
static uint16_t features_vector(struct admin *a, bool set)
{
    uint32_t vector = a->sqe->cdw11 & 0xffff, off = a->sqe->cdw11 & NO_COALESCING;

    if ((vector && vector >= a->s->cfg.vectors) || (set && a->sqe->cdw11 >> 17))
        return NVME_ERR_INVALID_FIELD;
    uint64_t bit = 1ull << (vector % 64), *word = &a->s->features.no_coalescing[vector / 64];
    if (set)
        *word = off ? *word | bit : *word & ~bit;
    else
        a->result = vector | (*word & bit ? NO_COALESCING : 0);
    return NVME_OK;
}

/* The identifier may be set once between two resets. Only identifiers of 16 bytes are accepted. */
static uint16_t features_host(struct admin *a, bool set)
{
    uint8_t *host = a->s->features.host, id[SIM_HOST_ID] = {0};
    static const uint8_t none[SIM_HOST_ID];

    if (a->sqe->cdw11 != NVME_HOST_ID_LONG)
        return NVME_ERR_INVALID_FIELD;
    if (!set)
        return sim_give(a->th, a->sqe, host, SIM_HOST_ID, 0, SIM_HOST_ID);
    uint16_t st = sim_take(a->th, a->sqe, id, sizeof(id));
    if (st != NVME_OK)
        return st;
    if (memcmp(host, none, sizeof(none)) != 0 && memcmp(host, id, sizeof(id)) != 0)
        return NVME_ERR_SEQUENCE;
    memcpy(host, id, sizeof(id));
    sim_reserve_host_changed(a->s);
    return NVME_OK;
}

static uint16_t features_kept(struct admin *a, bool set)
{
    int i = features_find(a->sqe->cdw10 & 0xff);

    if (set && a->sqe->cdw11 & ~kept[i].mask)
        return NVME_ERR_INVALID_FIELD;
    if (set)
        a->s->features.kept[i] = a->sqe->cdw11;
    else
        a->result = a->s->features.kept[i];
    return NVME_OK;
}

/* Returns the function of a feature, or NULL if it is not supported. */
static uint16_t (*features_function(const struct sim *s, uint32_t fid))(struct admin *a, bool set)
{
    switch (fid) {
    case NVME_FEAT_NUM_QUEUES:
        return features_queues;
    case NVME_FEAT_VOLATILE_WRITE_CACHE:
        return s->cfg.no_volatile_cache ? NULL : features_cache;
    case NVME_FEAT_FID_TEMP_THRESH:
        return features_threshold;
    case NVME_FEAT_FID_IRQ_CONFIG:
        return features_vector;
    case NVME_FEAT_HOST_ID:
        return s->reservations.shared ? features_host : NULL;
    default:
        return features_find(fid) >= 0 ? features_kept : NULL;
    }
}

bool sim_feature_known(const struct sim *s, uint32_t fid)
{
    return features_function(s, fid) != NULL;
}

/* Error Recovery concerns a namespace or all of them; the value is the same. */
static bool features_nsid_valid(struct admin *a, uint32_t fid)
{
    uint32_t nsid = a->sqe->nsid;

    return fid != NVME_FEAT_FID_ERR_RECOVERY || nsid == SIM_NSID_ALL || sim_ns_get(a->s, nsid);
}

uint16_t sim_features(struct admin *a)
{
    bool set = a->sqe->opcode == NVME_ADMIN_SET_FEATURES;
    uint32_t fid = a->sqe->cdw10 & 0xff;

    if (!sim_feature_known(a->s, fid) || !features_nsid_valid(a, fid) ||
        (!set && (a->sqe->cdw10 & SELECT)))
        return NVME_ERR_INVALID_FIELD;
    if (set && (a->sqe->cdw10 & SAVE))
        return SIM_ERR_NOT_SAVEABLE;
    return features_function(a->s, fid)(a, set);
}
