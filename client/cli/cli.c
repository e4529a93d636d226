/* SPDX-License-Identifier: BSD-2-Clause */
/* Common parts of the subcommands: command lines, messages, exit status. */
#include "client/cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpunvme/gpunvme.h"
#include "support/clock.h"

#define DEFAULT_BUFFER (256u << 20)
#define MAX_BUFFER     ((size_t)1 << 40)

int cli_error(const char *object, const char *fmt, ...)
{
    va_list args;

    fprintf(stderr, "gpunvme: %s: ", object);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return 1;
}

/* A size with an optional K, M or G; 0 when it is not one. */
static size_t parse_size(const char *text)
{
    char *end;

    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift)
        end++;
    if (errno || end == text || *end || *text == '-' || n > (MAX_BUFFER >> shift))
        return 0;
    return (size_t)n << shift;
}

static bool parse_path(const char *text, uint32_t *path)
{
    static const char *const names[] = {"auto", "gpu", "bounce"};

    for (*path = 0; *path < 3; ++*path) {
        if (strcmp(text, names[*path]) == 0)
            return true;
    }
    return false;
}

static int apply_option(int opt, const char *value, struct cli_options *out)
{
    if (opt == 'o' && strcmp(value, "json") != 0 && strcmp(value, "text") != 0) {
        cli_error(value, "no such output format, use text or json");
        return 3;
    }
    if (opt == 'o')
        out->json = strcmp(value, "json") == 0;
    else if (opt == 'q')
        out->quiet = true;
    else if (opt == 'c')
        out->checksum = true;
    else if (opt == 'f')
        out->force = true;
    else if (opt == 'n')
        out->dry_run = true;
    else if (opt == 'N')
        out->noiommu = true;
    else if (opt == 'b' && !(out->buffer = parse_size(value))) {
        cli_error(value, "not a buffer size, use for example 64M");
        return 3;
    } else if (opt == 'p' && !parse_path(value, &out->path)) {
        cli_error(value, "no such path, use auto, gpu or bounce");
        return 3;
    }
    return 0;
}

int cli_parse(int argc, char **argv, const char *accepted, struct cli_options *out, int *first)
{
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'}, {"quiet", no_argument, NULL, 'q'},
        {"checksum", no_argument, NULL, 'c'},     {"buffer", required_argument, NULL, 'b'},
        {"path", required_argument, NULL, 'p'},   {"force", no_argument, NULL, 'f'},
        {"dry-run", no_argument, NULL, 'n'},      {"noiommu", no_argument, NULL, 'N'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};

    *out = (struct cli_options){.buffer = DEFAULT_BUFFER};
    optind = 1;
    int opt;
    while ((opt = getopt_long(argc, argv, ":o:qcb:p:fnNh", options, NULL)) != -1) {
        if (opt == 'h') {
            printf("usage: gpunvme %s, see gpunvme --help\n", argv[0]);
            return 1;
        }
        if (opt == '?' || opt == ':' || !strchr(accepted, opt)) {
            cli_error(argv[0], "option not understood, see gpunvme --help");
            return 3;
        }
        int err = apply_option(opt, optarg, out);
        if (err)
            return err;
    }
    *first = optind;
    return 0;
}

int cli_parse_one(int argc, char **argv, const char *accepted, struct cli_options *out,
                  const char *what, const char **operand)
{
    int first;
    int stop = cli_parse(argc, argv, accepted, out, &first);

    if (stop)
        return stop;
    if (argc - first != 1) {
        cli_error(argv[0], "%s is needed, see gpunvme --help", what);
        return 3;
    }
    *operand = argv[first];
    return 0;
}

struct json_object *cli_json_new(void)
{
    struct json_object *root = json_object_new_object();

    json_object_object_add(root, "schema_version", json_object_new_int(CLI_SCHEMA_VERSION));
    return root;
}

void cli_json_print(struct json_object *root)
{
    puts(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED |
                                                  JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(root);
}

const char *cli_path_name(uint32_t path)
{
    static const char *const names[] = {"none", "gpu", "bounce", "mixed"};

    return path < sizeof(names) / sizeof(names[0]) ? names[path] : "unknown";
}

const char *cli_executor_name(uint32_t executor)
{
    static const char *const names[] = {"none", "cuda", "cpu"};

    return executor < sizeof(names) / sizeof(names[0]) ? names[executor] : "unknown";
}

void cli_progress_start(struct cli_progress *p, const char *what, uint64_t total, bool quiet)
{
    *p = (struct cli_progress){.what = what,
                               .total = total,
                               .started = now_seconds(),
                               .on = !quiet && total && isatty(STDERR_FILENO)};
}

void cli_progress_step(struct cli_progress *p, uint64_t done)
{
    double now = now_seconds();
    uint64_t ms = (uint64_t)(now * 1000);

    if (!p->on || ms < p->last_shown_ms + 100)
        return;
    p->last_shown_ms = ms;
    fprintf(stderr, "\r\033[K%s: %3.0f %%, %.2f GB/s", p->what,
            100.0 * (double)done / (double)p->total,
            (double)done / 1e9 / (now - p->started + 1e-9));
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->on && p->last_shown_ms)
        fputs("\r\033[K", stderr);
}
