/* SPDX-License-Identifier: BSD-2-Clause */
/* The findings of `gpunvme check`: facts, each with its meaning and the next step. */
#ifndef CLIENT_CLI_CHECK_CHECK_FINDINGS_H
#define CLIENT_CLI_CHECK_CHECK_FINDINGS_H

#include <stddef.h>

#include "client/cli/common/out.h"

#ifdef __cplusplus
extern "C" {
#endif

enum check_level { CHECK_OK, CHECK_WARN, CHECK_FAIL };

struct check_finding {
    enum check_level level;
    const char *id; /* stable, for scripts */
    char text[320];
    char advice[320]; /* empty when there is nothing to do */
};

struct check {
    struct check_finding *all;
    size_t n;
    enum check_level worst;
};

/* advice may be NULL. When memory runs out the finding is lost and the check has failed. */
void check_add(struct check *c, enum check_level level, const char *id, const char *advice,
               const char *text, ...) __attribute__((format(printf, 5, 6)));
void check_free(struct check *c);
void check_print(const struct check *c, struct cli_out *o);

#ifdef __cplusplus
}
#endif

#endif
