/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the GPUs of a mount. */
#include "client/cli/common/gpus_table.h"

#include <uuid/uuid.h>

#include "fusefs/metrics.h"

static void add_gpu(struct cli_table *t, const struct gpunvme_gpu *g)
{
    static const char *const states[] = {"closed", "open", "lost"};
    char uuid[UUID_STR_LEN];

    uuid_unparse_lower(g->uuid, uuid);
    struct json_object *cells[] = {
        cli_text(uuid),
        cli_text(g->name),
        cli_text(g->state < 3 ? states[g->state] : NULL),
        json_object_new_uint64(g->tier),
        json_object_new_uint64(g->queues),
        json_object_new_uint64(g->buffers),
        json_object_new_uint64(g->read_bytes),
        json_object_new_uint64(g->written_bytes),
        g->numa_node < 0 ? NULL : json_object_new_uint64((uint64_t)g->numa_node),
        cli_text(metrics_distance(g->distance)),
    };
    cli_table_add(t, cells);
}

void cli_gpus_table(struct cli_out *out, const struct gpunvme_ioc_gpus *gpus)
{
    static const struct cli_column columns[] = {
        {"uuid", "GPU", CLI_CELL_TEXT},         {"name", "NAME", CLI_CELL_TEXT},
        {"state", "EXECUTOR", CLI_CELL_TEXT},   {"tier", "TIER", CLI_CELL_NUMBER},
        {"queues", "QUEUES", CLI_CELL_NUMBER},  {"buffers", "BUFFERS", CLI_CELL_NUMBER},
        {"read_bytes", "READ", CLI_CELL_BYTES}, {"written_bytes", "WRITTEN", CLI_CELL_BYTES},
        {"numa_node", "NUMA", CLI_CELL_NUMBER}, {"distance", "DRIVE", CLI_CELL_TEXT}};
    struct cli_table t = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};

    for (uint32_t i = 0; i < gpus->count && i < GPUNVME_GPUS_MAX; i++)
        add_gpu(&t, &gpus->gpus[i]);
    cli_table_show(&t, out, "gpus");
}
