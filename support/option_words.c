/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the words that the completions of the shells offer. */
#include "support/option_words.h"

#include <stdio.h>
#include <string.h>

bool option_words_requested(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "--complete") == 0;
}

/* Returns the option that the first len characters of a word are, or NULL. */
static const struct option_words *option_words_find(const struct option_words *options, size_t n,
                                                    const char *word, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        const struct option_words *o = &options[i];
        if (o->letter && len == 2 && word[0] == '-' && word[1] == o->letter)
            return o;
        if (o->name && len > 2 && strncmp(word, "--", 2) == 0 && strlen(o->name) == len - 2 &&
            strncmp(word + 2, o->name, len - 2) == 0)
            return o;
    }
    return NULL;
}

/*
 * Skips the first `lead` characters of `word` and prints the values that begin
 * with the rest, each after the skipped characters. In a list, all elements but
 * the last one are complete.
 */
static void option_words_values(const struct option_words *o, const char *word, size_t lead)
{
    const char *comma = o->list ? strrchr(word + lead, ',') : NULL;

    if (comma)
        lead = (size_t)(comma + 1 - word);
    size_t begun = strlen(word + lead), len;
    for (const char *value = o->values; value && *value; value += len + strspn(value + len, " |")) {
        len = strcspn(value, " |");
        if (begun <= len && strncmp(value, word + lead, begun) == 0)
            printf("%.*s%.*s\t\n", (int)lead, word, (int)len, value);
    }
}

static void option_words_name(const struct option_words *o, const char *begun)
{
    char text[64];

    if (o->name)
        snprintf(text, sizeof(text), "--%s%s", o->name, o->has_value ? "=" : "");
    else
        snprintf(text, sizeof(text), "-%c", o->letter);
    if (strncmp(text, begun, strlen(begun)) == 0)
        printf("%s\t%.*s\n", text, o->help ? (int)strcspn(o->help, "\n") : 0,
               o->help ? o->help : "");
}

bool option_words_print(const struct option_words *options, size_t n, const char *previous,
                        const char *word)
{
    const struct option_words *before = option_words_find(options, n, previous, strlen(previous));
    size_t len = strcspn(word, "=");

    if (before && before->has_value) {
        option_words_values(before, word, 0);
        return true;
    }
    if (word[0] != '-')
        return false;
    const struct option_words *this = word[len] ? option_words_find(options, n, word, len) : NULL;
    if (this)
        option_words_values(this, word, len + 1);
    for (size_t i = 0; i < n && !word[len]; i++)
        option_words_name(&options[i], word);
    return true;
}

const char *option_words_help(const char *usage, const char *option)
{
    size_t len = strlen(option), n;

    for (const char *line = usage; *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        const char *at = line + strspn(line, " ");
        const char *gap = strstr(at, "  ");
        const char *end = gap && gap < line + n ? gap : line + n;
        if (at < line + 2)
            continue;
        for (; at < end; at += strspn(at, " ,")) {
            if (strncmp(at, option, len) == 0 && strchr(" ,=[\n", at[len]))
                return end + strspn(end, " \n");
            at += strcspn(at, " ,\n");
        }
    }
    return NULL;
}
