/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints Identify data. Offsets come from libnvme, so nvme_spec.h must not be
 * included here.
 */
#include "client/cli/common/pages.h"

#include <errno.h>
#include <libnvme.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"

enum kind { NUMBER, HEX, FLAG, TEXT, BYTES, ID };

/* Describes a field of a page. The field is all bytes at an offset, or one bit of these bytes. */
struct field {
    const char *key, *label;
    uint16_t offset, bytes;
    uint8_t bit; /* bit number of a FLAG */
    uint8_t kind;
};

#define AT(page, member) \
    (uint16_t) offsetof(struct page, member), (uint16_t)sizeof(((struct page *)0)->member)
#define CTRLR(member, kind, label)                        \
    {                                                     \
#member, label, AT(nvme_id_ctrl, member), 0, kind \
    }
#define CTRLR_BIT(member, bit, key, label)              \
    {                                                   \
        key, label, AT(nvme_id_ctrl, member), bit, FLAG \
    }
#define NS(member, kind, label)                         \
    {                                                   \
#member, label, AT(nvme_id_ns, member), 0, kind \
    }
#define NS_BIT(member, bit, key, label)               \
    {                                                 \
        key, label, AT(nvme_id_ns, member), bit, FLAG \
    }

static const struct field ctrlr_fields[] = {
    CTRLR(vid, HEX, "PCI vendor:"),
    CTRLR(ssvid, HEX, "PCI subsystem vendor:"),
    CTRLR(sn, TEXT, "Serial number:"),
    CTRLR(mn, TEXT, "Model:"),
    CTRLR(fr, TEXT, "Firmware:"),
    CTRLR(subnqn, TEXT, "Subsystem NQN:"),
    CTRLR(cntlid, NUMBER, "Controller ID:"),
    CTRLR(ver, HEX, "NVMe version:"),
    CTRLR(cntrltype, NUMBER, "Controller type:"),
    CTRLR(cmic, HEX, "Shared subsystem (CMIC):"),
    CTRLR(mdts, NUMBER, "MDTS:"),
    CTRLR(nn, NUMBER, "Namespaces at most:"),
    CTRLR(tnvmcap, BYTES, "Total capacity:"),
    CTRLR(unvmcap, BYTES, "Unallocated capacity:"),
    CTRLR(rtd3r, NUMBER, "Resume latency, us:"),
    CTRLR(rtd3e, NUMBER, "Shutdown latency, us:"),
    CTRLR(oacs, HEX, "Admin commands (OACS):"),
    CTRLR_BIT(oacs, 0, "security", "  security"),
    CTRLR_BIT(oacs, 1, "format", "  format"),
    CTRLR_BIT(oacs, 3, "ns_management", "  namespace management"),
    CTRLR_BIT(oacs, 8, "doorbell_buffer", "  doorbell buffer"),
    CTRLR(acl, NUMBER, "Abort limit, less one:"),
    CTRLR(aerl, NUMBER, "Event limit, less one:"),
    CTRLR(sqes, HEX, "SQ entry sizes (SQES):"),
    CTRLR(cqes, HEX, "CQ entry sizes (CQES):"),
    CTRLR(oncs, HEX, "I/O commands (ONCS):"),
    CTRLR_BIT(oncs, 0, "compare", "  compare"),
    CTRLR_BIT(oncs, 2, "dsm", "  dataset management"),
    CTRLR_BIT(oncs, 3, "write_zeroes", "  write zeroes"),
    CTRLR_BIT(oncs, 7, "verify", "  verify"),
    CTRLR(fuses, HEX, "Fused commands:"),
    CTRLR_BIT(vwc, 0, "volatile_cache", "Volatile write cache:"),
    CTRLR(awun, NUMBER, "Atomic write, less one:"),
    CTRLR(awupf, NUMBER, "  at power fail:"),
    CTRLR(sgls, HEX, "SGLs:"),
    CTRLR(hmpre, NUMBER, "Host memory wanted, 4K:"),
    CTRLR(hmmin, NUMBER, "  at least, 4K:"),
    CTRLR(wctemp, NUMBER, "Warning temperature, K:"),
    CTRLR(cctemp, NUMBER, "Critical temperature, K:"),
};

static const struct field ns_fields[] = {
    NS(nsze, NUMBER, "LBAs:"),
    NS(ncap, NUMBER, "LBAs, capacity:"),
    NS(nuse, NUMBER, "LBAs in use:"),
    NS(nsfeat, HEX, "Features:"),
    NS_BIT(nsfeat, 0, "thin", "  thin provisioning"),
    NS_BIT(nmic, 0, "shared", "Shared:"),
    NS_BIT(nsattr, 0, "write_protected", "Write protected:"),
    NS(flbas, HEX, "FLBAS:"),
    NS(nlbaf, NUMBER, "LBA formats, less one:"),
    NS(mc, HEX, "Metadata capabilities:"),
    NS(dpc, HEX, "Protection capabilities:"),
    NS(dps, HEX, "Protection in use:"),
    NS(dlfeat, HEX, "Deallocation features:"),
    NS(noiob, NUMBER, "Optimal I/O boundary:"),
    NS(npwg, NUMBER, "Write granule, less one:"),
    NS(npwa, NUMBER, "Write alignment, less one:"),
    NS(nows, NUMBER, "Optimal write, less one:"),
    NS(nawun, NUMBER, "Atomic write, less one:"),
    NS(nawupf, NUMBER, "  at power fail:"),
    NS(nvmcap, BYTES, "Capacity:"),
    NS(nguid, ID, "NGUID:"),
    NS(eui64, ID, "EUI-64:"),
};

/*
 * Reads a little-endian number, the byte order of the host. A value above 64
 * bits is returned as the largest number.
 */
static uint64_t number_at(const uint8_t *page, const struct field *f)
{
    uint64_t value = 0;
    size_t bytes = f->bytes < sizeof(value) ? f->bytes : sizeof(value);

    memcpy(&value, page + f->offset, bytes);
    for (size_t i = bytes; i < f->bytes; i++) {
        if (page[f->offset + i])
            return UINT64_MAX;
    }
    return value;
}

/* Copies a padded ASCII field, and masks other characters. */
static void text_at(const uint8_t *page, const struct field *f, char *out)
{
    size_t n = strnlen((const char *)page + f->offset, f->bytes);

    memcpy(out, page + f->offset, n);
    while (n > 0 && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] >= 0x20 && out[i] < 0x7f ? out[i] : '?';
}

static void id_at(const uint8_t *page, const struct field *f, char *out)
{
    for (size_t i = 0; i < f->bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", page[f->offset + i]);
}

static void show_field(struct cli_out *o, const uint8_t *page, const struct field *f)
{
    char text[260];

    switch (f->kind) {
    case FLAG:
        cli_out_flag(o, f->key, f->label, number_at(page, f) >> f->bit & 1);
        break;
    case HEX:
        cli_out_hex(o, f->key, f->label, number_at(page, f), 2u * f->bytes);
        break;
    case TEXT:
        text_at(page, f, text);
        cli_out_string(o, f->key, f->label, text);
        break;
    case ID:
        id_at(page, f, text);
        cli_out_string(o, f->key, f->label, text);
        break;
    default:
        cli_out_number(o, f->key, f->label, number_at(page, f));
    }
}

static void show_fields(struct cli_out *o, const void *page, const struct field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++)
        show_field(o, page, &fields[i]);
}

/* Prints whether the driver's own parser accepts the object. */
static void show_verdict(struct cli_out *o, int err, const char *what)
{
    cli_out_flag(o, "usable", "Usable:", !err);
    cli_out_string(o, "problem", "Problem:", err ? what : "none");
}

void cli_show_ctrlr(struct cli_out *o, const void *page, uint32_t *nn)
{
    struct nvme_ctrlr_info info;
    struct nvme_id_facts facts;
    const struct nvme_id_ctrl *id = page;
    const char *what = "";
    int err = nvme_parse_ctrlr(page, &info, &facts, &what);

    show_fields(o, page, ctrlr_fields, sizeof(ctrlr_fields) / sizeof(ctrlr_fields[0]));
    cli_out_number(o, "max_transfer",
                   "Bytes per command:", id->mdts && id->mdts < 52 ? 4096ull << id->mdts : 0);
    show_verdict(o, err, what);
    *nn = id->nn;
}

static const struct cli_column format_columns[] = {
    {"index", "LBA FORMAT", CLI_CELL_NUMBER},  {"lba_size", "LBA SIZE", CLI_CELL_NUMBER},
    {"metadata", "METADATA", CLI_CELL_NUMBER}, {"performance", "PERFORMANCE", CLI_CELL_NUMBER},
    {"in_use", "IN USE", CLI_CELL_FLAG},
};

static void show_formats(struct cli_out *o, const struct nvme_id_ns *ns)
{
    struct cli_table table = {.columns = format_columns, .n_columns = 5};
    unsigned n = ns->nlbaf < 64 ? ns->nlbaf + 1u : 64;
    unsigned used = (ns->flbas & 0xfu) | (ns->nlbaf > 15 ? (ns->flbas >> 1) & 0x30u : 0);

    for (unsigned i = 0; i < n; i++) {
        const struct nvme_lbaf *f = &ns->lbaf[i];
        struct json_object *cells[] = {
            json_object_new_uint64(i), json_object_new_uint64(f->ds < 64 ? 1ull << f->ds : 0),
            json_object_new_uint64(f->ms), json_object_new_uint64(f->rp & 3u),
            json_object_new_boolean(i == used)};
        cli_table_add(&table, cells);
    }
    cli_table_show(&table, o, "lba_formats");
}

const char *cli_show_ns(struct cli_out *o, const void *page, uint32_t nsid, uint8_t command_set)
{
    struct nvme_ns_info info = {0};
    const char *what = "";
    int err = nvme_parse_ns(page, nsid, &info, &what);

    info.command_set = command_set;
    const char *reason = err ? NULL : nvme_ns_unusable(&info);
    if (reason) {
        err = -ENOTSUP;
        what = reason;
    }
    cli_out_number(o, "nsid", "NSID:", nsid);
    cli_out_bytes(o, "bytes", "Size:", info.lbas * info.lba_size);
    cli_out_number(o, "lba_size", "LBA size:", info.lba_size);
    cli_out_number(o, "metadata", "Metadata per LBA:", info.metadata);
    show_fields(o, page, ns_fields, sizeof(ns_fields) / sizeof(ns_fields[0]));
    show_verdict(o, err, what);
    show_formats(o, page);
    return err ? what : NULL;
}
