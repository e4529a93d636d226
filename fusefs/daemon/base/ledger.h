/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counts what each user holds of one kind of thing, and limits it. A part of
 * the things is reserved for root. Any other user may hold half of what the
 * remaining users leave, rounded up, so that a newcomer always finds some unless
 * many users take their shares.
 *
 * The functions do not lock: the caller's lock protects the ledger.
 */
#ifndef FUSEFS_DAEMON_BASE_LEDGER_H
#define FUSEFS_DAEMON_BASE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

#define LEDGER_USERS 256u /* that hold something at the same time, without root */

/* The first two members are set by the caller, all others are 0 at first. */
struct ledger {
    uint64_t total;
    uint64_t for_root; /* at most total */
    uint64_t of_root;  /* held by root */
    uint64_t of_users; /* held by all others */
    unsigned n_users;
    struct ledger_user {
        uid_t uid;
        uint64_t held; /* above 0 */
    } users[LEDGER_USERS];
};

/* Returns how many more the user may take. */
uint64_t ledger_left(const struct ledger *l, uid_t uid);
/* Charges the user with n. Returns false, without effect, if fewer are left. */
bool ledger_take(struct ledger *l, uid_t uid, uint64_t n);
/* Ends a charge of n, which may be part of a larger one. */
void ledger_give(struct ledger *l, uid_t uid, uint64_t n);

__END_DECLS

#endif
