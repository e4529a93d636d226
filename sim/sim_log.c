/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements Get Log Page (BASE 5.16). */
#include <endian.h>
#include <nvme/types.h>
#include <string.h>

#include "sim/sim_admin.h"

#define RETAIN_EVENT      (1u << 15) /* CDW10.RAE */
#define INDEX_OFFSET      (1u << 23) /* CDW14.OT */
#define UNIT_BYTES        512000u    /* of data units: thousands of 512 bytes */
#define SPARE_THRESHOLD   10u
#define EFFECT_SUPPORTED  (1u << 0)
#define EFFECT_CONTENT    (1u << 1) /* changes the contents of LBAs */
#define SCOPE_CONTROLLER  (1u << 21)
#define SCOPE_NAMESPACE   (1u << 20)
#define FIRMWARE_IN_SLOT1 1u

static void sim_log_put(__u8 field[16], uint64_t v)
{
    v = htole64(v);
    memcpy(field, &v, sizeof(v));
}

static void log_smart(struct sim *s, void *page)
{
    struct nvme_smart_log *smart = page;
    const uint16_t kelvin = htole16(SIM_KELVIN);
    struct sim_stats stats;

    sim_get_stats(s, &stats);
    if (SIM_KELVIN >= s->features.over_kelvin || SIM_KELVIN <= s->features.under_kelvin)
        smart->critical_warning = NVME_SMART_CRIT_TEMPERATURE;
    memcpy(smart->temperature, &kelvin, sizeof(kelvin));
    smart->avail_spare = 100;
    smart->spare_thresh = SPARE_THRESHOLD;
    sim_log_put(smart->data_units_read, (stats.read_bytes + UNIT_BYTES - 1) / UNIT_BYTES);
    sim_log_put(smart->data_units_written, (stats.written_bytes + UNIT_BYTES - 1) / UNIT_BYTES);
    sim_log_put(smart->host_reads, stats.reads);
    sim_log_put(smart->host_writes, stats.writes);
    sim_log_put(smart->power_cycles, 1);
}

static void log_firmware(struct sim *s, void *page)
{
    struct nvme_firmware_slot *slots = page;

    (void)s;
    slots->afi = FIRMWARE_IN_SLOT1;
    memset(slots->frs[0], ' ', sizeof(slots->frs[0]));
    memcpy(slots->frs[0], SIM_FIRMWARE, strlen(SIM_FIRMWARE));
}

static void log_changed(struct sim *s, void *page)
{
    __le32 *ids = page;

    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (s->changed & 1u << i)
            *ids++ = htole32(i + 1);
}

static void log_effects(struct sim *s, void *page)
{
    static const uint8_t admin[] = {
        NVME_ADMIN_DELETE_SQ,   NVME_ADMIN_CREATE_SQ,    NVME_ADMIN_GET_LOG_PAGE,
        NVME_ADMIN_DELETE_CQ,   NVME_ADMIN_CREATE_CQ,    NVME_ADMIN_IDENTIFY,
        NVME_ADMIN_ABORT,       NVME_ADMIN_SET_FEATURES, NVME_ADMIN_GET_FEATURES,
        NVME_ADMIN_ASYNC_EVENT,
    };
    struct nvme_cmd_effects_log *log = page;
    const __le32 reads = htole32(EFFECT_SUPPORTED);
    const __le32 writes = htole32(EFFECT_SUPPORTED | EFFECT_CONTENT);

    for (unsigned i = 0; i < sizeof(admin); i++)
        log->acs[admin[i]] = reads;
    for (unsigned opcode = 0; s->reservations.shared && opcode < 256; opcode++)
        if (sim_reserve_has((uint8_t)opcode))
            log->iocs[opcode] = reads;
    log->iocs[NVME_IO_FLUSH] = log->iocs[NVME_IO_READ] = reads;
    log->iocs[NVME_IO_WRITE] = log->iocs[NVME_IO_WRITE_ZEROES] = log->iocs[NVME_IO_DSM] = writes;
}

static void log_features(struct sim *s, void *page)
{
    __le32 *ids = page;

    for (uint32_t fid = 0; fid < 256; fid++)
        if (sim_feature_known(s, fid))
            ids[fid] =
                htole32(EFFECT_SUPPORTED |
                        (fid == NVME_FEAT_FID_ERR_RECOVERY ? SCOPE_NAMESPACE : SCOPE_CONTROLLER));
}

static void log_supported(struct sim *s, void *page);

/*
 * The log of errors is empty, because the status of a command says everything.
 */
static const struct log {
    uint8_t lid;
    uint16_t size;
    void (*fill)(struct sim *s, void *page);
} logs[] = {
    {0x00, 1024, log_supported},
    {0x01, 64, NULL},
    {0x02, 512, log_smart},
    {0x03, 512, log_firmware},
    {NVME_LOG_CHANGED_NS, 4096, log_changed},
    {0x05, 4096, log_effects},
    {0x12, 1024, log_features},
    {NVME_LOG_RESERVATION, 64, sim_reserve_log},
};
static_assert(sizeof(struct nvme_smart_log) == 512, "SMART is 512 bytes");
static_assert(sizeof(struct nvme_firmware_slot) == 512, "slots are 512 bytes");
static_assert(sizeof(struct nvme_cmd_effects_log) == 4096, "effects are a page");

static bool log_is_offered(const struct sim *s, const struct log *log)
{
    return log->lid != NVME_LOG_RESERVATION || s->reservations.shared;
}

static void log_supported(struct sim *s, void *page)
{
    __le32 *ids = page;

    for (size_t i = 0; i < sizeof(logs) / sizeof(logs[0]); i++)
        if (log_is_offered(s, &logs[i]))
            ids[logs[i].lid] = htole32(EFFECT_SUPPORTED);
}

static const struct log *log_find(uint8_t lid)
{
    for (size_t i = 0; i < sizeof(logs) / sizeof(logs[0]); i++)
        if (logs[i].lid == lid)
            return &logs[i];
    return NULL;
}

/* All pages are those of the controller. */
static bool log_nsid_valid(uint32_t nsid)
{
    return nsid == 0 || nsid == SIM_NSID_ALL;
}

uint16_t sim_get_log_page(struct admin *a)
{
    _Alignas(64) unsigned char page[NVME_PAGE_SIZE] = {0};
    const struct log *log = log_find(a->sqe->cdw10 & 0xff);
    uint64_t offset = a->sqe->cdw12 | (uint64_t)a->sqe->cdw13 << 32;
    uint64_t bytes = sim_log_bytes(a->sqe);

    if (!log || !log_is_offered(a->s, log))
        return SIM_ERR_INVALID_LOG_PAGE;
    if (offset % 4 || offset > log->size || (a->sqe->cdw14 & INDEX_OFFSET) ||
        !log_nsid_valid(a->sqe->nsid))
        return NVME_ERR_INVALID_FIELD;
    if (bytes > a->s->cfg.mdts)
        return sim_admin_flagged(a, SIM_EV_TRANSFER_TOO_LARGE, NVME_ERR_INVALID_FIELD);
    if (log->fill)
        log->fill(a->s, page);
    uint16_t st = sim_give(a->th, a->sqe, page, log->size, offset, bytes);
    if (st == NVME_OK && log->lid == NVME_LOG_CHANGED_NS && !(a->sqe->cdw10 & RETAIN_EVENT)) {
        a->s->changed = 0;
        a->s->change_told = false;
    }
    if (st == NVME_OK && log->lid == NVME_LOG_RESERVATION && !(a->sqe->cdw10 & RETAIN_EVENT))
        sim_reserve_log_read(a->s);
    return st;
}
