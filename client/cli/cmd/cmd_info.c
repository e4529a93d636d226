/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme info` prints properties and counters of a mount. */
#include <stdio.h>
#include <uuid/uuid.h>

#include "blockdev/nvme/nvme_info.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/lib/connection.h"

/* One table, so that text and JSON carry the same fields. */
struct field {
    const char *json, *text;
    const char *string; /* NULL for a number */
    uint64_t number;
};

static void print_fields(struct cli_out *out, const struct field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        if (f->string)
            cli_out_string(out, f->json, f->text, f->string);
        else
            cli_out_counter(out, f->json, f->text, f->number);
    }
}

static void print_info(struct cli_out *out, const struct gpunvme_ioc_info *info)
{
    char fs[UUID_STR_LEN], gpu[UUID_STR_LEN], quirks[NVME_QUIRKS_TEXT];

    uuid_unparse_lower(info->fs_uuid, fs);
    nvme_quirks_text(info->quirks, quirks, sizeof(quirks));
    uuid_unparse_lower(info->gpu_uuid, gpu);
    const struct field fields[] = {
        {"executor", "Executor:", cli_executor_name(info->executor), 0},
        {"executor_name", "Executor name:", info->executor_name, 0},
        {"fallback", "Fallback:", info->fallback[0] ? info->fallback : "none", 0},
        {"transport", "Transport:", info->transport, 0},
        {"quirks", "Workarounds:", quirks, 0},
    };
    const struct field limits[] = {
        {"tier_note", "Tier note:", info->tier_note[0] ? info->tier_note : "none", 0},
        {"queues", "GPU queues:", NULL, info->queues},
        {"depth", "Queue depth:", NULL, info->depth},
        {"lba_size", "LBA size:", NULL, info->lba_size},
        {"max_command", "Bytes per command:", NULL, info->max_command},
        {"block_size", "Block size:", NULL, info->block_size},
        {"max_buffers", "Buffers at most:", NULL, info->max_buffers},
        {"fs_uuid", "File system UUID:", fs, 0},
        {"gpu_uuid", "GPU UUID:", gpu, 0},
    };
    print_fields(out, fields, sizeof(fields) / sizeof(fields[0]));
    if (info->executor == GPUNVME_EXECUTOR_NONE)
        cli_out_none(out, "tier", "Tier:");
    else
        cli_out_number(out, "tier", "Tier:", info->tier);
    print_fields(out, limits, sizeof(limits) / sizeof(limits[0]));
    cli_out_flag(out, "direct", "Direct path for you:", info->direct);
    if (info->executor == GPUNVME_EXECUTOR_NONE)
        cli_out_none(out, "lease_tier", "Tier of leases:");
    else
        cli_out_number(out, "lease_tier", "Tier of leases:", info->lease_tier);
    cli_out_number(out, "lease_queues", "Queues to lease:", info->lease_queues);
    cli_out_flag(out, "writeback_cache", "Write-back cache:", info->writeback_cache);
}

static void info_print_stats(struct cli_out *out, const struct gpunvme_ioc_stats *st)
{
    const struct field fields[] = {
        {"gpu_transfers", "GPU transfers:", NULL, st->gpu_transfers},
        {"gpu_commands", "GPU commands:", NULL, st->gpu_commands},
        {"gpu_read_bytes", "GPU bytes read:", NULL, st->gpu_read_bytes},
        {"gpu_written_bytes", "GPU bytes written:", NULL, st->gpu_written_bytes},
        {"gpu_staged_read_bytes", "GPU bytes read, staged:", NULL, st->gpu_staged_read_bytes},
        {"gpu_staged_written_bytes", "GPU bytes written, staged:", NULL,
         st->gpu_staged_written_bytes},
        {"bounce_transfers", "Bounce transfers:", NULL, st->bounce_transfers},
        {"bounce_read_bytes", "Bounce bytes read:", NULL, st->bounce_read_bytes},
        {"bounce_written_bytes", "Bounce bytes written:", NULL, st->bounce_written_bytes},
        {"errors", "Errors:", NULL, st->errors},
        {"timeouts", "Timeouts:", NULL, st->timeouts},
        {"cancelled", "Cancelled:", NULL, st->cancelled},
        {"buffers", "Buffers:", NULL, st->buffers},
        {"quarantined_queues", "Queues out of service:", NULL, st->quarantined_queues},
        {"aborts", "Aborts:", NULL, st->aborts},
        {"queue_recreations", "Queues recreated:", NULL, st->queue_recreations},
        {"controller_resets", "Controller resets:", NULL, st->controller_resets},
        {"metadata_reread", "Metadata read twice:", NULL, st->metadata_reread},
        {"metadata_corrected", "Metadata corrected:", NULL, st->metadata_corrected},
        {"metadata_copied", "Metadata from copies:", NULL, st->metadata_copied},
        {"metadata_damaged", "Metadata damaged:", NULL, st->metadata_damaged},
        {"metadata_unwritten", "Metadata places failed:", NULL, st->metadata_unwritten},
        {"dma_regions", "DMA regions:", NULL, st->dma_regions},
        {"dma_region_limit", "DMA regions at most:", NULL, st->dma_region_limit},
        {"fuse_requests", "Requests of the kernel:", NULL, st->fuse_requests},
    };

    print_fields(out, fields, sizeof(fields) / sizeof(fields[0]));
}

int cli_info(int argc, char **argv)
{
    struct cli_options options;
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_stats stats;
    struct connection *g;
    const char *path;
    int stop = cli_parse_one(argc, argv, "o", &options, "one path", &path);

    if (stop)
        return stop - 1;
    if (connection_open(path, &g))
        return cli_error(path, "%s", gpunvme_error());
    int failed = 0;
    if (gpunvme_info(connection_fd(g), &info) || gpunvme_stats(connection_fd(g), &stats))
        failed = cli_error(path, "%s", gpunvme_error());
    connection_close(g);
    if (failed)
        return failed;
    struct cli_out out;
    cli_out_begin(&out, options.json, stdout);
    print_info(&out, &info);
    info_print_stats(&out, &stats);
    cli_out_end(&out);
    return 0;
}
