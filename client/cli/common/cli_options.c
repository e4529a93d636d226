/* SPDX-License-Identifier: BSD-2-Clause */
/* Describes the options of all commands once, for parsing and for --help. */
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "support/number.h"
#include "support/option_words.h"

#define DEFAULT_BUFFER  ((size_t)256 << 20)
#define MIN_BUFFER      ((size_t)4096)
#define MAX_BUFFER      ((uint64_t)1 << 40)
#define DEFAULT_ROW     256u
#define MAX_ROW         ((uint64_t)1 << 20)
#define MAX_LIMIT       ((uint64_t)1 << 60)
#define MAX_OFFSET      ((uint64_t)INT64_MAX)
#define MAX_SECONDS     86400
#define MAX_DEADLINE_MS 3600000

#define AT(member) offsetof(struct cli_options, member)

static const struct described {
    char letter;
    const char *name, *argument; /* argument is NULL without one */
    const char *help;
    const char *values; /* with spaces between them; NULL if there is no list of them */
    size_t flag;        /* offset of the bool in struct cli_options that it sets; 0: none */
    size_t number;      /* offset of the number that it sets; 0: none */
    bool is_size;       /* the number may end in K, M, G or T */
    uint64_t least, most;
    const char *wrong; /* message about another number */
} described[] = {
    {'o', "output", "FORMAT", "text (default) or json; prometheus for stats",
     .values = "text json"},
    {'q', "quiet", NULL, "no progress", .flag = AT(quiet)},
    {'c', "checksum", NULL, "XXH3 of the bytes that reached the buffer", .flag = AT(checksum)},
    {'b', "buffer", "SIZE", "size of the registered buffer, with K, M or G (default 256M)",
     .number = AT(buffer), .is_size = true, .least = 1, .most = MAX_BUFFER,
     .wrong = "not a buffer size, use for example 64M"},
    {'p', "path", "PATH", "auto (default), gpu or bounce", .values = "auto gpu bounce"},
    {'f', "force", NULL, "take a drive that bears somebody's data; never one in use",
     .flag = AT(force)},
    {'n', "dry-run", NULL, "check, say what would be done, and do nothing", .flag = AT(dry_run)},
    {'N', "noiommu", NULL, "a drive that no IOMMU guards: it can then write to any memory",
     .flag = AT(noiommu)},
    {'t', "deadline", "MS", "time a command to the drive may take (default 10000)",
     .number = AT(deadline_ms), .least = 1, .most = MAX_DEADLINE_MS,
     .wrong = "not a number of milliseconds from 1 to 3600000"},
    {'d', "data", NULL, "read data by commands of every length, and compare; write nothing",
     .flag = AT(data)},
    {'s', "scratch", "OFFSET", "with --data: write there, 4 MiB, and put back what it held",
     .flag = AT(scratch), .number = AT(scratch_start), .is_size = true, .most = MAX_OFFSET,
     .wrong = "not a byte of a drive, use for example 0 or 64M"},
    {'u', "cufile", NULL, "what NVIDIA's cuFile lacks here, or for the file that is named",
     .flag = AT(cufile)},
    {'a', "add", NULL, "a checksum for each block that has none, of what it holds",
     .flag = AT(add)},
    {'r', "correct", NULL, "one flipped bit of a block, which is then listed", .flag = AT(correct)},
    {'m', "metadata", NULL, "the metadata of the file system alone, and no files",
     .flag = AT(metadata)},
    {'R', "rows", NULL, "rows at random places of the file, by tables and by other ways",
     .flag = AT(rows)},
    {'S', "row-size", "SIZE", "with --rows: bytes of a row, from 1 to 1M (default 256)",
     .number = AT(row_size), .is_size = true, .least = 1, .most = MAX_ROW,
     .wrong = "not a size of rows, use for example 256 or 4K"},
    {'l', "limit", "SIZE", "bytes that a directory's files may take, with K, M, G or T",
     .number = AT(limit), .is_size = true, .least = 1, .most = MAX_LIMIT,
     .wrong = "not a limit, use for example 100G"},
    {'i', "interval", "SECONDS", "between two turns (default 1)", .flag = AT(keeps_on),
     .number = AT(interval), .least = 1, .most = MAX_SECONDS,
     .wrong = "not a number of seconds from 1 to 86400"},
    {'C', "count", "NUMBER", "turns, then end (default: no end)", .flag = AT(keeps_on),
     .number = AT(count), .least = 1, .most = MAX_SECONDS, .wrong = "not a number from 1 to 86400"},
    {'w', "textfile", "FILE", "Prometheus text to FILE, which is replaced as a whole",
     .values = NULL},
    {'h', "help", NULL, "this text", .values = NULL},
};
#define N_DESCRIBED (sizeof(described) / sizeof(described[0]))

static void print_option(const struct described *d, FILE *to)
{
    char names[48];

    snprintf(names, sizeof(names), "-%c, --%s%s%s", d->letter, d->name, d->argument ? "=" : "",
             d->argument ? d->argument : "");
    fprintf(to, "  %-22s %s\n", names, d->help);
}

void cli_print_options(FILE *to)
{
    for (size_t i = 0; i < N_DESCRIBED; i++)
        print_option(&described[i], to);
}

void cli_print_help(const struct cli_command *command, FILE *to)
{
    fprintf(to, "usage: gpunvme %s [OPTION...]%s%s\n%s\n\n", command->name,
            *command->operands ? " " : "", command->operands, command->purpose);
    for (size_t i = 0; i < N_DESCRIBED; i++) {
        if (described[i].letter == 'h' || strchr(command->options, described[i].letter))
            print_option(&described[i], to);
    }
    fputs("\nExit status: 0, 1 when something failed, 2 for a wrong command line. "
          "See gpunvme(1).\n",
          to);
}

/* --- Completion ------------------------------------------------------------------------------ */

bool cli_complete_option(const struct cli_command *command, const char *previous, const char *word)
{
    bool prometheus = strchr(command->options, 'w') != NULL;
    struct option_words options[N_DESCRIBED];
    size_t n = 0;

    for (size_t i = 0; i < N_DESCRIBED; i++) {
        const struct described *d = &described[i];
        if (d->letter != 'h' && !strchr(command->options, d->letter))
            continue;
        options[n++] = (struct option_words){
            .name = d->name,
            .letter = d->letter,
            .has_value = d->argument != NULL,
            .values = d->letter == 'o' && prometheus ? "text json prometheus" : d->values,
            .help = d->help};
    }
    return option_words_print(options, n, previous, word);
}

/* --- Values ---------------------------------------------------------------------------------- */

static bool parse_path(const char *text, uint32_t *path)
{
    static const char *const names[] = {"auto", "gpu", "bounce"}; /* as in `described` */

    for (*path = 0; *path < 3; ++*path) {
        if (strcmp(text, names[*path]) == 0)
            return true;
    }
    return false;
}

static int options_wrong(const char *value, const char *what)
{
    cli_error(value, "%s", what);
    return 2;
}

static int apply_format(const char *value, struct cli_options *out, bool prometheus)
{
    out->json = strcmp(value, "json") == 0;
    out->prometheus = prometheus && strcmp(value, "prometheus") == 0;
    if (!out->json && !out->prometheus && strcmp(value, "text") != 0)
        return options_wrong(value, prometheus
                                        ? "no such output format, use text, json or prometheus"
                                        : "no such output format, use text or json");
    return 0;
}

static int apply_number(const struct described *d, const char *value, struct cli_options *out)
{
    uint64_t *number = (uint64_t *)((char *)out + d->number);

    if (!(d->is_size ? number_parse_size(value, d->most, number)
                     : number_parse(value, 10, d->most, number)) ||
        *number < d->least)
        return options_wrong(value, d->wrong);
    if (d->letter == 'b' && *number < MIN_BUFFER)
        return options_wrong(value, "too small for a buffer, a block has 4K: use for example 64M");
    return 0;
}

static int apply_option(const struct described *d, const char *value, const char *accepted,
                        struct cli_options *out)
{
    if (d->flag)
        *(bool *)((char *)out + d->flag) = true;
    if (d->number)
        return apply_number(d, value, out);
    if (d->letter == 'o')
        return apply_format(value, out, strchr(accepted, 'w') != NULL);
    if (d->letter == 'p' && !parse_path(value, &out->path))
        return options_wrong(value, "no such path, use auto, gpu or bounce");
    if (d->letter == 'w')
        out->textfile = value;
    return 0;
}

/* --- The command line ------------------------------------------------------------------------ */

/* Describes all options in the form of getopt_long(3). */
static void options_describe(char *letters, struct option *options)
{
    *letters++ = ':';
    for (size_t i = 0; i < N_DESCRIBED; i++) {
        const struct described *d = &described[i];
        *letters++ = d->letter;
        if (d->argument)
            *letters++ = ':';
        options[i] = (struct option){.name = d->name,
                                     .has_arg = d->argument ? required_argument : no_argument,
                                     .val = d->letter};
    }
    *letters = '\0';
    options[N_DESCRIBED] = (struct option){0};
}

/* Returns the option, or NULL. */
static const struct described *options_find(int letter)
{
    const struct described *d = described;

    while (d < described + N_DESCRIBED && d->letter != letter)
        d++;
    return d < described + N_DESCRIBED ? d : NULL;
}

/*
 * Reports the option at which getopt_long(3) stopped: a letter, or without one
 * the word `given`. Returns what cli_parse() returns.
 */
static int options_refuse(const char *command, int opt, const char *given)
{
    int letter = opt == '?' || opt == ':' ? optopt : opt;
    const struct described *d = options_find(letter);
    char name[64];

    if (d)
        snprintf(name, sizeof(name), "-%c (--%s)", letter, d->name);
    else if (letter)
        snprintf(name, sizeof(name), "-%c", letter);
    else
        snprintf(name, sizeof(name), "%s", given);
    cli_error(command,
              opt == ':' ? "option %s needs a value, see gpunvme %s --help"
                         : "option %s not understood, see gpunvme %s --help",
              name, command);
    return 2;
}

int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_options *out,
              int *first)
{
    char letters[2 * N_DESCRIBED + 2];
    struct option options[N_DESCRIBED + 1];
    int opt;

    options_describe(letters, options);
    *out = (struct cli_options){.buffer = DEFAULT_BUFFER, .row_size = DEFAULT_ROW, .interval = 1};
    optind = 1;
    while ((opt = getopt_long(argc, argv, letters, options, NULL)) != -1) {
        if (opt == '?' || opt == ':' || !strchr(command->options, opt))
            return options_refuse(argv[0], opt, argv[optind - 1]);
        if (apply_option(options_find(opt), optarg, command->options, out))
            return 2;
    }
    *first = optind;
    if (argc - optind >= command->least && argc - optind <= command->most)
        return 0;
    cli_error(argv[0], "%s needed, see gpunvme %s --help", command->needs, argv[0]);
    return 2;
}
