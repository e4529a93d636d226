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

struct cli_command {
    const char *name;
    const char *options; /* letters of the accepted options, without -h */
    const char *operands;
    const char *purpose;
    int (*run)(int argc, char **argv);
};

int cli_read(int argc, char **argv);
int cli_write(int argc, char **argv);
int cli_cp(int argc, char **argv);
int cli_extents(int argc, char **argv);
int cli_label(int argc, char **argv);
int cli_resize(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_identify(int argc, char **argv);
int cli_regs(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_stats(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_cache(int argc, char **argv);
int cli_scrub(int argc, char **argv);
int cli_bind(int argc, char **argv);
int cli_unbind(int argc, char **argv);

/* Values of the options that several subcommands share. */
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
    size_t buffer;          /* bytes */
    size_t row_size;        /* bytes */
    uint32_t path;          /* GPUNVME_PATH_GPU or _BOUNCE; 0: automatic */
    bool keeps_on;          /* an interval or a count was given */
    uint64_t limit;         /* bytes; 0: not given */
    uint64_t scratch_start; /* byte offset on the drive */
    unsigned interval;      /* seconds */
    unsigned count;         /* 0: unlimited */
    const char *textfile;
    unsigned deadline_ms; /* of commands to a controller; 0: the driver's default */
};

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
 * Parses the options and stores the index of the first operand in *first.
 * Returns 0, or 1 plus the exit status of the command (so that --help can end
 * it with 0).
 */
int cli_parse(int argc, char **argv, const char *accepted, struct cli_options *out, int *first);

/*
 * Does the same, and requires `least` to `most` operands, which `what` names in
 * the message: "a source and a file are".
 */
int cli_parse_operands(int argc, char **argv, const char *accepted, struct cli_options *out,
                       int least, int most, const char *what, int *first);

/*
 * Does the same for a command with exactly one operand, and stores it in
 * *operand. `what` names the operand in messages.
 */
int cli_parse_one(int argc, char **argv, const char *accepted, struct cli_options *out,
                  const char *what, const char **operand);

/*
 * Parses a size with an optional K, M, G or T. Returns 0 if the text is not a
 * size or exceeds `most`.
 */
uint64_t cli_parse_size(const char *text, uint64_t most);

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
void cli_json_print(struct json_object *root);
/* Prints and frees a document with only this list. */
void cli_json_print_list(const char *key, struct json_object *list);

/*
 * A document whose last member is a list with possibly millions of elements.
 * Each element is printed when it is added. The functions take ownership of
 * root and the elements.
 */
struct cli_json_list {
    uint64_t n;
};
void cli_json_list_begin(struct cli_json_list *l, struct json_object *root, const char *name);
void cli_json_list_add(struct cli_json_list *l, struct json_object *element);
void cli_json_list_end(const struct cli_json_list *l);

const char *cli_path_name(uint32_t path);
const char *cli_executor_name(uint32_t executor);

/* Progress on a terminal: a line, rewritten at most ten times a second. */
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
