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

#define FLAG(member) offsetof(struct cli_options, member)

static const struct described {
    char letter;
    const char *name, *argument; /* argument is NULL without one */
    const char *help;
    size_t flag;        /* offset of the bool in struct cli_options that it sets; 0: none */
    const char *values; /* with spaces between them; NULL if there is no list of them */
} described[] = {
    {'o', "output", "FORMAT", "text (default) or json; prometheus for stats", 0, "text json"},
    {'q', "quiet", NULL, "no progress", FLAG(quiet), NULL},
    {'c', "checksum", NULL, "XXH3 of the bytes that reached the buffer", FLAG(checksum), NULL},
    {'b', "buffer", "SIZE", "size of the registered buffer, with K, M or G (default 256M)", 0,
     NULL},
    {'p', "path", "PATH", "auto (default), gpu or bounce", 0, "auto gpu bounce"},
    {'f', "force", NULL, "take a drive that bears somebody's data; never one in use", FLAG(force),
     NULL},
    {'n', "dry-run", NULL, "check, say what would be done, and do nothing", FLAG(dry_run), NULL},
    {'N', "noiommu", NULL, "a drive that no IOMMU guards: it can then write to any memory",
     FLAG(noiommu), NULL},
    {'t', "deadline", "MS", "time a command to the drive may take (default 10000)", 0, NULL},
    {'d', "data", NULL, "read data by commands of every length, and compare; write nothing",
     FLAG(data), NULL},
    {'s', "scratch", "OFFSET", "with --data: write there, 4 MiB, and put back what it held",
     FLAG(scratch), NULL},
    {'u', "cufile", NULL, "what NVIDIA's cuFile lacks here, or for the file that is named",
     FLAG(cufile), NULL},
    {'a', "add", NULL, "a checksum for each block that has none, of what it holds", FLAG(add),
     NULL},
    {'r', "correct", NULL, "one flipped bit of a block, which is then listed", FLAG(correct), NULL},
    {'m', "metadata", NULL, "the metadata of the file system alone, and no files", FLAG(metadata),
     NULL},
    {'R', "rows", NULL, "rows at random places of the file, by tables and by other ways",
     FLAG(rows), NULL},
    {'S', "row-size", "SIZE", "with --rows: bytes of a row, from 1 to 1M (default 256)", 0, NULL},
    {'l', "limit", "SIZE", "bytes that a directory's files may take, with K, M, G or T", 0, NULL},
    {'i', "interval", "SECONDS", "between two turns (default 1)", 0, NULL},
    {'C', "count", "NUMBER", "turns, then end (default: no end)", 0, NULL},
    {'w', "textfile", "FILE", "Prometheus text to FILE, which is replaced as a whole", 0, NULL},
    {'h', "help", NULL, "this text", 0, NULL},
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

#define NUMBER(member) offsetof(struct cli_options, member)

static const struct numbered {
    char letter;
    bool is_size; /* may end in K, M, G or T */
    uint64_t least, most;
    size_t number; /* offset of the number in struct cli_options */
    const char *wrong;
} numbered[] = {
    {'b', true, 1, MAX_BUFFER, NUMBER(buffer), "not a buffer size, use for example 64M"},
    {'l', true, 1, MAX_LIMIT, NUMBER(limit), "not a limit, use for example 100G"},
    {'S', true, 1, MAX_ROW, NUMBER(row_size), "not a size of rows, use for example 256 or 4K"},
    {'s', true, 0, MAX_OFFSET, NUMBER(scratch_start),
     "not a byte of a drive, use for example 0 or 64M"},
    {'i', false, 1, MAX_SECONDS, NUMBER(interval), "not a number of seconds from 1 to 86400"},
    {'C', false, 1, MAX_SECONDS, NUMBER(count), "not a number from 1 to 86400"},
    {'t', false, 1, MAX_DEADLINE_MS, NUMBER(deadline_ms),
     "not a number of milliseconds from 1 to 3600000"},
};

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

static int apply_number(const struct numbered *n, const char *value, struct cli_options *out)
{
    uint64_t *number = (uint64_t *)((char *)out + n->number);

    if (!(n->is_size ? number_parse_size(value, n->most, number)
                     : number_parse(value, 10, n->most, number)) ||
        *number < n->least)
        return options_wrong(value, n->wrong);
    return 0;
}

static int apply_value(int opt, const char *value, struct cli_options *out)
{
    for (size_t i = 0; i < sizeof(numbered) / sizeof(numbered[0]); i++) {
        if (numbered[i].letter == opt && apply_number(&numbered[i], value, out))
            return 2;
    }
    if (opt == 'b' && out->buffer < MIN_BUFFER)
        return options_wrong(value, "too small for a buffer, a block has 4K: use for example 64M");
    if (opt == 'p' && !parse_path(value, &out->path))
        return options_wrong(value, "no such path, use auto, gpu or bounce");
    out->keeps_on |= opt == 'i' || opt == 'C';
    if (opt == 'w')
        out->textfile = value;
    return 0;
}

/* Sets the flag of an option, if it has one. */
static void apply_flag(int opt, struct cli_options *out)
{
    for (size_t i = 0; i < N_DESCRIBED; i++) {
        if (described[i].letter == opt && described[i].flag)
            *(bool *)((char *)out + described[i].flag) = true;
    }
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

/* Stores "-x" or "-x (--name)" of an option's letter. */
static void options_name_letter(int letter, char *out, size_t len)
{
    for (size_t i = 0; i < N_DESCRIBED; i++) {
        if (described[i].letter == letter) {
            snprintf(out, len, "-%c (--%s)", letter, described[i].name);
            return;
        }
    }
    snprintf(out, len, "-%c", letter);
}

/*
 * Reports the option at which getopt_long(3) stopped: a letter, or without one
 * the word `given`. Returns what cli_parse() returns.
 */
static int options_refuse(const char *command, int opt, const char *given)
{
    int letter = opt == '?' || opt == ':' ? optopt : opt;
    char name[64];

    if (letter)
        options_name_letter(letter, name, sizeof(name));
    else
        snprintf(name, sizeof(name), "%s", given);
    cli_error(command,
              opt == ':' ? "option %s needs a value, see gpunvme %s --help"
                         : "option %s not understood, see gpunvme %s --help",
              name, command);
    return 2;
}

static int apply_option(int opt, const char *value, const char *accepted, struct cli_options *out)
{
    if (opt == 'o')
        return apply_format(value, out, strchr(accepted, 'w') != NULL);
    apply_flag(opt, out);
    return value ? apply_value(opt, value, out) : 0;
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
        if (apply_option(opt, optarg, command->options, out))
            return 2;
    }
    *first = optind;
    if (argc - optind >= command->least && argc - optind <= command->most)
        return 0;
    cli_error(argv[0], "%s needed, see gpunvme %s --help", command->needs, argv[0]);
    return 2;
}
