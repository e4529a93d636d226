/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses lines of /proc/PID/mountinfo. */
#include "support/mount_line.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Spaces, tabs, newlines and backslashes of names are octal numbers. */
static void mount_line_unescape(char *text)
{
    char *to = text;

    for (const char *at = text; *at; to++) {
        bool octal = at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] && at[3];
        *to = octal ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        at += octal ? 4 : 1;
    }
    *to = '\0';
}

bool mount_line_parse(char *line, struct mount_line *out)
{
    char *field[9], *rest = line;

    line[strcspn(line, "\n")] = '\0';
    for (unsigned i = 0; i < 9; i++) {
        if (i == 6 && rest) { /* a hyphen ends the optional fields */
            rest = strstr(rest, "- ");
            rest = rest ? rest + 2 : NULL;
        }
        field[i] = strsep(&rest, " ");
        if (!field[i])
            return false;
        mount_line_unescape(field[i]);
    }
    *out = (struct mount_line){.id = strtoul(field[0], NULL, 10),
                               .parent = strtoul(field[1], NULL, 10),
                               .device = field[2],
                               .root = field[3],
                               .point = field[4],
                               .type = field[6],
                               .source = field[7],
                               .options = field[8]};
    return true;
}
