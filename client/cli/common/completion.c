/* SPDX-License-Identifier: BSD-2-Clause */
/* Completes command lines of `gpunvme` from its tables of commands and options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"

static bool completion_begins(const char *text, const char *begun)
{
    return strncmp(text, begun, strlen(begun)) == 0;
}

static void completion_commands(const struct cli_command *commands, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++) {
        if (completion_begins(commands[i].name, word))
            printf("%s\t%s\n", commands[i].name, commands[i].purpose);
    }
}

/* Completes the options that stand in the place of a command. */
static void completion_first(const struct cli_command *commands, size_t n, const char *word)
{
    static const char *const others[] = {"help\tprint this, or the help of a command",
                                         "--help\tprint the commands", "--version\tprint it"};

    completion_commands(commands, n, word);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (completion_begins(others[i], word))
            puts(others[i]);
    }
}

static void completion_addresses(const char *word)
{
    struct pci_device *drives;
    size_t n;

    if (pci_list("", pci_is_nvme, &drives, &n) != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        if (completion_begins(drives[i].bdf, word))
            printf("%s\t%s\n", drives[i].bdf, drives[i].driver);
    }
    free(drives);
}

void cli_complete(const struct cli_command *commands, size_t n_commands, int n, char **words)
{
    const struct cli_command *command = NULL;
    const char *word = n > 0 ? words[n - 1] : "";

    for (size_t i = 0; n > 1 && i < n_commands; i++) {
        if (strcmp(words[0], commands[i].name) == 0)
            command = &commands[i];
    }
    if (n <= 1)
        completion_first(commands, n_commands, word);
    else if (n == 2 && strcmp(words[0], "help") == 0)
        completion_commands(commands, n_commands, word);
    else if (command && !cli_complete_option(command, words[n - 2], word) &&
             (strstr(command->operands, "ADDRESS") || strstr(command->operands, "DEVICE")))
        completion_addresses(word);
}
