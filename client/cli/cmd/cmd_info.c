/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme info` prints properties and counters of a mount. */
#include <uuid/uuid.h>

#include "blockdev/nvme/nvme_info.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/gpus_table.h"
#include "client/cli/common/out.h"
#include "client/lib/connection.h"

static void print_info(struct cli_out *out, const struct gpunvme_ioc_info *info)
{
    char fs[UUID_STR_LEN], gpu[UUID_STR_LEN], quirks[NVME_QUIRKS_TEXT];

    uuid_unparse_lower(info->fs_uuid, fs);
    nvme_quirks_text(info->quirks, quirks, sizeof(quirks));
    uuid_unparse_lower(info->gpu_uuid, gpu);
    cli_out_string(out, "executor", "Executor:", cli_executor_name(info->executor));
    cli_out_string(out, "executor_name", "Executor name:", info->executor_name);
    cli_out_string(out, "fallback", "Fallback:", info->fallback[0] ? info->fallback : "none");
    cli_out_string(out, "transport", "Transport:", info->transport);
    cli_out_string(out, "quirks", "Workarounds:", quirks);
    if (info->executor == GPUNVME_EXECUTOR_NONE)
        cli_out_none(out, "tier", "Tier:");
    else
        cli_out_number(out, "tier", "Tier:", info->tier);
    cli_out_string(out, "tier_note", "Tier note:", info->tier_note[0] ? info->tier_note : "none");
    cli_out_number(out, "queues", "GPU queues:", info->queues);
    cli_out_number(out, "depth", "Queue depth:", info->depth);
    cli_out_number(out, "lba_size", "LBA size:", info->lba_size);
    cli_out_number(out, "max_command", "Bytes per command:", info->max_command);
    cli_out_number(out, "block_size", "Block size:", info->block_size);
    cli_out_number(out, "max_buffers", "Buffers at most:", info->max_buffers);
    cli_out_string(out, "fs_uuid", "File system UUID:", fs);
    cli_out_string(out, "gpu_uuid", "GPU UUID:", gpu);
    cli_out_flag(out, "direct", "Direct path for you:", info->direct);
    if (info->executor == GPUNVME_EXECUTOR_NONE)
        cli_out_none(out, "lease_tier", "Tier of leases:");
    else
        cli_out_number(out, "lease_tier", "Tier of leases:", info->lease_tier);
    cli_out_number(out, "lease_queues", "Queues to lease:", info->lease_queues);
    cli_out_flag(out, "writeback_cache", "Write-back cache:", info->writeback_cache);
}

int cli_info(const struct cli_options *options, char **operands, int n)
{
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_stats stats;
    struct gpunvme_ioc_gpus gpus;
    struct connection *g;
    const char *path = operands[0];

    (void)n;
    if (connection_open(path, &g))
        return cli_error(path, "%s", gpunvme_error());
    int err = gpunvme_info(connection_fd(g), &info);
    if (!err)
        err = gpunvme_stats(connection_fd(g), &stats);
    if (!err)
        err = gpunvme_gpus(connection_fd(g), &gpus);
    if (err)
        cli_error(path, "%s", gpunvme_error());
    connection_close(g);
    if (err)
        return 1;
    struct cli_out out;
    cli_out_begin(&out, options->json, stdout);
    print_info(&out, &info);
    cli_out_counters(&out, &stats);
    cli_out_number(&out, "dma_regions", "DMA regions:", stats.dma_regions);
    cli_out_number(&out, "dma_region_limit", "DMA regions at most:", stats.dma_region_limit);
    cli_gpus_table(&out, &gpus);
    cli_out_end(&out);
    return 0;
}
