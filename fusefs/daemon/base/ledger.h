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

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LEDGER_USERS 256u /* that hold something at the same time, without root */

struct ledger_user {
    uid_t uid;
    uint64_t held; /* above 0 */
};

/* The caller sets the first two members. All other members are 0 at first. */
struct ledger {
    uint64_t total;
    uint64_t for_root; /* at most total */
    uint64_t of_root;  /* held by root */
    uint64_t of_users; /* held by all others */
    unsigned n_users;
    struct ledger_user users[LEDGER_USERS];
};

static inline struct ledger_user *ledger_find(struct ledger *l, uid_t uid)
{
    for (unsigned i = 0; i < l->n_users; i++) {
        if (l->users[i].uid == uid)
            return &l->users[i];
    }
    return NULL;
}

/* Returns how many more the user may take. */
static inline uint64_t ledger_left(const struct ledger *l, uid_t uid)
{
    uint64_t left = l->total - l->of_root - l->of_users;
    uint64_t spared = l->of_root < l->for_root ? l->for_root - l->of_root : 0;

    if (uid == 0)
        return left;
    left -= spared < left ? spared : left;
    const struct ledger_user *u = ledger_find((struct ledger *)l, uid);
    if (!u)
        return l->n_users < LEDGER_USERS ? left - left / 2 : 0;
    uint64_t most = u->held + left - (u->held + left) / 2;
    return most > u->held ? most - u->held : 0;
}

/* Charges the user with n. Returns false, without effect, if fewer are left. */
static inline bool ledger_take(struct ledger *l, uid_t uid, uint64_t n)
{
    if (n > ledger_left(l, uid))
        return false;
    if (uid == 0) {
        l->of_root += n;
        return true;
    }
    struct ledger_user *u = ledger_find(l, uid);
    if (!u && n) {
        u = &l->users[l->n_users++];
        u->uid = uid;
        u->held = 0;
    }
    if (u)
        u->held += n;
    l->of_users += n;
    return true;
}

/* Ends a charge of n, which may be a part of a larger charge. */
static inline void ledger_give(struct ledger *l, uid_t uid, uint64_t n)
{
    if (n == 0)
        return;
    if (uid == 0) {
        assert(l->of_root >= n);
        l->of_root -= n;
        return;
    }
    struct ledger_user *u = ledger_find(l, uid);
    assert(u && u->held >= n);
    u->held -= n;
    l->of_users -= n;
    if (u->held == 0)
        *u = l->users[--l->n_users];
}

#endif
