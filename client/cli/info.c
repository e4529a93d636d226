#include <inttypes.h>
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/gpunvme.h"

/* One definition for both outputs, so that text and JSON carry the same fields. */
struct field {
    const char *json, *text;
    const char *string; /* NULL: number */
    uint64_t number;
};

static void format_uuid(const uint8_t id[16], char out[37])
{
    int at = 0;
    for (int i = 0; i < 16; i++)
        at += snprintf(out + at, (size_t)(37 - at), "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
}

static void print_fields(struct json_object *root, const struct field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        if (root && f->string)
            json_object_object_add(root, f->json, json_object_new_string(f->string));
        else if (root)
            json_object_object_add(root, f->json, json_object_new_uint64(f->number));
        else if (f->string)
            printf("%-22s %s\n", f->text, f->string);
        else
            printf("%-22s %" PRIu64 "\n", f->text, f->number);
    }
}

static void print_info(struct json_object *root, const struct gpunvme_ioc_info *info)
{
    char fs[37], gpu[37];
    format_uuid(info->fs_uuid, fs);
    format_uuid(info->gpu_uuid, gpu);
    const struct field fields[] = {
        {"executor", "Executor:", cli_executor_name(info->executor), 0},
        {"executor_name", "Executor name:", info->executor_name, 0},
        {"fallback", "Fallback:", info->fallback[0] ? info->fallback : "none", 0},
        {"transport", "Transport:", info->transport, 0},
        {"tier", "Tier:", NULL, info->tier},
        {"queues", "GPU queues:", NULL, info->queues},
        {"depth", "Queue depth:", NULL, info->depth},
        {"lba_size", "LBA size:", NULL, info->lba_size},
        {"max_command", "Bytes per command:", NULL, info->max_command},
        {"block_size", "Block size:", NULL, info->block_size},
        {"max_buffers", "Buffers at most:", NULL, info->max_buffers},
        {"fs_uuid", "File system UUID:", fs, 0},
        {"gpu_uuid", "GPU UUID:", gpu, 0},
    };
    print_fields(root, fields, sizeof(fields) / sizeof(fields[0]));
}

static void print_stats(struct json_object *root, const struct gpunvme_ioc_stats *st)
{
    const struct field fields[] = {
        {"gpu_transfers", "GPU transfers:", NULL, st->gpu_transfers},
        {"gpu_commands", "GPU commands:", NULL, st->gpu_commands},
        {"gpu_read_bytes", "GPU bytes read:", NULL, st->gpu_read_bytes},
        {"gpu_written_bytes", "GPU bytes written:", NULL, st->gpu_written_bytes},
        {"bounce_transfers", "Bounce transfers:", NULL, st->bounce_transfers},
        {"bounce_read_bytes", "Bounce bytes read:", NULL, st->bounce_read_bytes},
        {"bounce_written_bytes", "Bounce bytes written:", NULL, st->bounce_written_bytes},
        {"errors", "Errors:", NULL, st->errors},
        {"timeouts", "Timeouts:", NULL, st->timeouts},
        {"cancelled", "Cancelled:", NULL, st->cancelled},
        {"buffers", "Buffers:", NULL, st->buffers},
        {"quarantined_queues", "Queues out of service:", NULL, st->quarantined_queues},
    };
    print_fields(root, fields, sizeof(fields) / sizeof(fields[0]));
}

int cli_info(int argc, char **argv)
{
    struct cli_options options;
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_stats stats;
    struct gpunvme *g;
    int first;
    int stop = cli_parse(argc, argv, "o", &options, &first);
    if (stop)
        return stop - 1;
    if (argc - first != 1) {
        cli_error("info", "one path is needed, see gpunvme --help");
        return 2;
    }
    if (gpunvme_connect(argv[first], &g))
        return cli_error(argv[first], "%s", gpunvme_error());
    int failed = 0;
    if (gpunvme_info(g, &info) || gpunvme_stats(g, &stats))
        failed = cli_error(argv[first], "%s", gpunvme_error());
    gpunvme_disconnect(g);
    if (failed)
        return failed;
    struct json_object *root = options.json ? cli_json_new() : NULL;
    print_info(root, &info);
    print_stats(root, &stats);
    if (root)
        cli_json_print(root);
    return 0;
}
