/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints the words that may complete a command line. The completions of the
 * shells request them by `PROGRAM --complete WORD...`, where the last word may
 * be incomplete.
 */
#ifndef SUPPORT_OPTION_WORDS_H
#define SUPPORT_OPTION_WORDS_H

#include <stdbool.h>
#include <stddef.h>

struct option_words {
    const char *name; /* without "--"; NULL if the option has only a letter */
    char letter;      /* 0 if the option has only a name */
    bool has_value;
    bool list;          /* the value has several of the words, separated by commas */
    const char *values; /* words that it may be, separated by ' ' or '|'; or NULL */
    const char *help;   /* up to a line feed; may be NULL */
};

/*
 * Returns true if the command line is a request of a completion, which the
 * program then answers from argc - 2 words at argv + 2.
 */
bool option_words_requested(int argc, char **argv);

/*
 * Prints the options that begin with `word`, or the values that may follow the
 * option `previous` or the "=" in `word`. Each line has one of them, a tab and
 * its description. Returns false if `word` is an operand.
 */
bool option_words_print(const struct option_words *options, size_t n, const char *previous,
                        const char *word);

/*
 * Returns the description of an option in a usage text, where a line is
 * "  -x, --name=VALUE   description", or NULL. `option` is "-x" or "--name".
 */
const char *option_words_help(const char *usage, const char *option);

#endif
