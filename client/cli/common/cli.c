/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the command lines, messages and exit status that subcommands
 * share.
 */
#include "client/cli/common/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/clock.h"

/* --- Errors ---------------------------------------------------------------------------------- */

static struct json_object *errors; /* of this single-threaded process */
static bool document_printed;

/* Removes the object from a message of the library that begins with it. */
static const char *without_object(const char *text, const char *object)
{
    size_t len = strlen(object);

    return strncmp(text, object, len) == 0 && strncmp(text + len, ": ", 2) == 0 ? text + len + 2
                                                                                : text;
}

int cli_error(const char *object, const char *fmt, ...)
{
    char formatted[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(formatted, sizeof(formatted), fmt, args);
    va_end(args);
    const char *text = without_object(formatted, object);
    fprintf(stderr, "gpunvme: %s: %s\n", object, text);
    if (!errors)
        errors = json_object_new_array();
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "object", json_object_new_string(object));
    json_object_object_add(o, "message", json_object_new_string(text));
    json_object_array_add(errors, o);
    return 1;
}

void cli_document_end(struct json_object *root)
{
    if (errors)
        json_object_object_add(root, "errors", json_object_get(errors));
    document_printed = true;
}

/*
 * Looks for the option itself, since an error may have ended parsing before it.
 */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-ojson") == 0 || strcmp(argv[i], "--output=json") == 0)
            return true;
        if (i + 1 < argc && strcmp(argv[i + 1], "json") == 0 &&
            (strcmp(argv[i], "-o") == 0 || strcmp(argv[i], "--output") == 0))
            return true;
    }
    return false;
}

int cli_finish(int argc, char **argv, int status)
{
    if (status && !document_printed && asks_for_json(argc, argv))
        cli_json_print(cli_json_new(), stdout);
    json_object_put(errors);
    errors = NULL;
    return status;
}

struct json_object *cli_json_new(void)
{
    struct json_object *root = json_object_new_object();

    json_object_object_add(root, "schema_version", json_object_new_int(CLI_SCHEMA_VERSION));
    return root;
}

static const char *json_text(struct json_object *root)
{
    return json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED |
                                                    JSON_C_TO_STRING_NOSLASHESCAPE);
}

void cli_json_print(struct json_object *root, FILE *to)
{
    cli_document_end(root);
    fprintf(to, "%s\n", json_text(root));
    json_object_put(root);
}

void cli_json_list_begin(struct cli_json_list *l, struct json_object *root, const char *name)
{
    const char *text = json_text(root);

    *l = (struct cli_json_list){0};
    /* Prints all but the closing "\n}". */
    printf("%.*s,\n  \"%s\": [", (int)strlen(text) - 2, text, name);
    json_object_put(root);
}

void cli_json_list_add(struct cli_json_list *l, struct json_object *element)
{
    printf("%s\n    %s", l->n++ ? "," : "",
           json_object_to_json_string_ext(element, JSON_C_TO_STRING_SPACED |
                                                       JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(element);
}

void cli_json_list_end(const struct cli_json_list *l)
{
    struct json_object *rest = json_object_new_object();

    cli_document_end(rest);
    fputs(l->n ? "\n  ]" : "]", stdout);
    /* Prints all but the opening "{". */
    if (json_object_object_length(rest) > 0)
        printf(",%s\n", json_text(rest) + 1);
    else
        puts("\n}");
    json_object_put(rest);
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
