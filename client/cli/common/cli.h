/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme` has one file per subcommand. A subcommand returns its
 * exit status: 0, 1 if something failed, or 2 for a wrong command line.
 */
#ifndef CLIENT_CLI_H
#define CLIENT_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "support/clock.h"
#include <json-c/json.h>

#define CLI_SCHEMA_VERSION 1

/* Stores the values of options that several subcommands share. */
struct cli_options {
    bool json;
    bool prometheus; /* for stats only */
    bool quiet;
    bool checksum;
    bool force;
    bool dry_run;
    bool noiommu;
    bool data;
    bool scratch; /* scratch_start was given */
    bool cufile;
    bool add;
    bool correct;
    bool metadata;
    bool rows;
    bool keeps_on;          /* an interval or a count was given */
    uint32_t path;          /* GPUNVME_PATH_GPU or _BOUNCE; 0: automatic */
    uint64_t buffer;        /* bytes */
    uint64_t row_size;      /* bytes */
    uint64_t limit;         /* bytes; 0: not given */
    uint64_t scratch_start; /* byte offset on the drive */
    uint64_t interval;      /* seconds */
    uint64_t count;         /* 0: unlimited */
    uint64_t deadline_ms;   /* of commands to a controller; 0: the driver's default */
    const char *textfile;
};

/* A subcommand takes its options and n operands. */
typedef int cli_run(const struct cli_options *options, char **operands, int n);

struct cli_command {
    const char *name;
    const char *options; /* letters of the accepted options, without -h */
    const char *operands;
    const char *purpose;
    cli_run *run;
    int least, most;   /* number of operands */
    const char *needs; /* what the operands are, in the message about others: "files are" */
};

cli_run cli_read, cli_write, cli_cp, cli_extents, cli_label, cli_resize, cli_info, cli_list,
    cli_identify, cli_regs, cli_check, cli_stats, cli_top, cli_trace, cli_bench, cli_verify,
    cli_cache, cli_scrub, cli_bind, cli_unbind;

/*
 * Prints "usage: ..." and the options of one command, or the options of all
 * commands.
 */
void cli_print_help(const struct cli_command *command, FILE *to);
void cli_print_options(FILE *to);

/*
 * Prints the words that may stand at the place of the last one of a command
 * line, each with a tab and its description. Prints nothing if there are none,
 * or it is a file. The shells' completions call this.
 */
void cli_complete(const struct cli_command *commands, size_t n_commands, int n, char **words);
/*
 * Does so if the word is an option or the value of one (also of `previous`).
 * Returns false if it is an operand.
 */
bool cli_complete_option(const struct cli_command *command, const char *previous, const char *word);

/*
 * Parses the options and stores the index of the first operand in *first. argv
 * begins with the name of the command. Returns 0, or
 * 2, the exit status, after a message.
 */
int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_options *out,
              int *first);

/*
 * Prints "gpunvme: OBJECT: what" to stderr and returns 1. With -o json the
 * message is also added to the document.
 */
int cli_error(const char *object, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds the messages so far, "errors": [...], before a document is printed. */
void cli_document_end(struct json_object *root);
/*
 * Called before main() returns its status. Prints a document for a command that
 * failed under -o json without one. Returns the status.
 */
int cli_finish(int argc, char **argv, int status);

/* Returns a document; cli_json_print() prints and frees it. */
struct json_object *cli_json_new(void);
void cli_json_print(struct json_object *root, FILE *to);

/*
 * Prints a document whose last member is a list. The list may have millions of
 * elements, so each element is printed when it is added. The functions take
 * ownership of root and the elements.
 */
struct cli_json_list {
    uint64_t n;
};
void cli_json_list_begin(struct cli_json_list *l, struct json_object *root, const char *name);
void cli_json_list_add(struct cli_json_list *l, struct json_object *element);
void cli_json_list_end(const struct cli_json_list *l);

const char *cli_path_name(uint32_t path);
const char *cli_executor_name(uint32_t executor);

/*
 * Shows progress in a line of a terminal. The line is rewritten at most ten
 * times a second.
 */
struct cli_progress {
    const char *what;
    uint64_t total, last_shown_ms;
    double started;
    bool on;
};
void cli_progress_start(struct cli_progress *p, const char *what, uint64_t total, bool quiet);
void cli_progress_step(struct cli_progress *p, uint64_t done);
void cli_progress_end(struct cli_progress *p);

#endif
