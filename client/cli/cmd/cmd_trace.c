/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme trace` prints the recorded events of a mount. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "client/lib/connection.h"

/* Names of the fields of a record; without a name it is not printed. */
static const struct trace_form {
    const char *event, *id, *a, *b, *len, *result;
} trace_forms[] = {
    [GPUNVME_TRACE_REQUEST] = {"request", "opcode", "unique", "node", "bytes", NULL},
    [GPUNVME_TRACE_REQUEST_DONE] = {"request done", "opcode", "unique", "node", NULL, NULL},
    [GPUNVME_TRACE_OP] = {"op", NULL, "inode", "offset", "bytes", NULL},
    [GPUNVME_TRACE_OP_DONE] = {"op done", NULL, "inode", "commands", "bytes", "error"},
    [GPUNVME_TRACE_SUBMIT] = {"submit", "cid", "lba", "qid", "opcode", NULL},
    [GPUNVME_TRACE_COMPLETE] = {"complete", "cid", "lba", "qid", "opcode", "status"},
    [GPUNVME_TRACE_COMMIT] = {"commit", NULL, "transaction", NULL, "blocks", NULL},
    [GPUNVME_TRACE_COMMIT_DONE] = {"commit done", NULL, "transaction", NULL, "blocks", "error"},
    [GPUNVME_TRACE_RECOVERY] = {"recovery", NULL, "queue", NULL, NULL, NULL},
    [GPUNVME_TRACE_RECOVERY_DONE] = {"recovery done", NULL, "queue", NULL, NULL, "error"},
};

static const struct trace_form *trace_form_of(const struct gpunvme_trace_record *r)
{
    static const struct trace_form unknown = {"unknown", "id", "a", "b", "len", "result"};
    bool known =
        r->kind < sizeof(trace_forms) / sizeof(trace_forms[0]) && trace_forms[r->kind].event;

    return known ? &trace_forms[r->kind] : &unknown;
}

/* Returns the meaning of an id, or NULL if it is only a number. */
static const char *trace_name(const struct gpunvme_trace_record *r)
{
    static const char *const ops[] = {"READ", "WRITE", "READV", "read", "write"};
    static const char *const recoveries[] = {NULL, "queue", "executor", "controller"};
    bool op = r->kind == GPUNVME_TRACE_OP || r->kind == GPUNVME_TRACE_OP_DONE;
    bool recovery = r->kind == GPUNVME_TRACE_RECOVERY || r->kind == GPUNVME_TRACE_RECOVERY_DONE;

    if (op && r->id < sizeof(ops) / sizeof(ops[0]))
        return ops[r->id];
    if (recovery && r->id < sizeof(recoveries) / sizeof(recoveries[0]))
        return recoveries[r->id];
    return NULL;
}

static void trace_print_field(const char *name, int64_t value)
{
    if (name)
        printf(" %s %" PRId64, name, value);
}

static void trace_print(const struct gpunvme_trace_record *r)
{
    const struct trace_form *f = trace_form_of(r);
    const char *name = trace_name(r);

    printf("%6llu.%09llu %s", r->ns / NS_PER_S, r->ns % NS_PER_S, f->event);
    if (name)
        printf(" %s", name);
    trace_print_field(f->id, r->id);
    trace_print_field(f->a, (int64_t)r->a);
    trace_print_field(f->b, (int64_t)r->b);
    trace_print_field(f->len, r->len);
    trace_print_field(f->result, r->result);
    putchar('\n');
}

static void trace_add_field(struct json_object *o, const char *name, int64_t value)
{
    if (name)
        json_object_object_add(o, name, json_object_new_int64(value));
}

static struct json_object *trace_json(const struct gpunvme_trace_record *r)
{
    const struct trace_form *f = trace_form_of(r);
    const char *name = trace_name(r);
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "ns", json_object_new_uint64(r->ns));
    json_object_object_add(o, "event", json_object_new_string(f->event));
    if (name)
        json_object_object_add(o, "what", json_object_new_string(name));
    trace_add_field(o, f->id, r->id);
    trace_add_field(o, f->a, (int64_t)r->a);
    trace_add_field(o, f->b, (int64_t)r->b);
    trace_add_field(o, f->len, r->len);
    trace_add_field(o, f->result, r->result);
    return o;
}

/*
 * Prints the records that the mount has now, from page->next on. It stops
 * there, since reading adds records, too. Returns 0, or 1 after a message.
 */
static int trace_drain(struct connection *g, const char *path, struct gpunvme_ioc_trace *page,
                       struct cli_json_list *list)
{
    uint64_t next = page->next, end = 0, lost = 0;

    do {
        if (gpunvme_trace(connection_fd(g), next, page))
            return cli_error(path, "%s", gpunvme_error());
        next = page->next;
        end = end ? end : page->end;
        lost += page->lost;
        for (uint32_t i = 0; i < page->count; i++) {
            if (list)
                cli_json_list_add(list, trace_json(&page->records[i]));
            else
                trace_print(&page->records[i]);
        }
    } while (page->count && next < end);
    fflush(stdout);
    return lost
               ? cli_error(path, "%" PRIu64 " records were overwritten before they were read", lost)
               : 0;
}

static int trace_show(struct connection *g, const char *path, const struct cli_options *options)
{
    struct gpunvme_ioc_trace page = {.next = 0};
    struct cli_json_list list;
    int failed = 0;

    if (options->json)
        cli_json_list_begin(&list, cli_json_new(), "records");
    for (unsigned i = 0; !failed; i++) {
        failed = trace_drain(g, path, &page, options->json ? &list : NULL);
        if (!options->keeps_on || (options->count && i + 1 >= options->count))
            break;
        sleep((unsigned)options->interval);
    }
    if (options->json)
        cli_json_list_end(&list);
    return failed;
}

int cli_trace(const struct cli_options *options, char **operands, int n)
{
    struct connection *g;
    const char *path = operands[0];

    (void)n;
    if (connection_open(path, &g))
        return cli_error(path, "%s", gpunvme_error());
    int failed = trace_show(g, path, options);
    connection_close(g);
    return failed;
}
