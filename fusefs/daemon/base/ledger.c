/* SPDX-License-Identifier: BSD-2-Clause */
/* Computes the share of a user from what all users hold. */
#include "fusefs/daemon/base/ledger.h"

#include <assert.h>
#include <stddef.h>

static struct ledger_user *ledger_find(struct ledger *l, uid_t uid)
{
    for (unsigned i = 0; i < l->n_users; i++) {
        if (l->users[i].uid == uid)
            return &l->users[i];
    }
    return NULL;
}

uint64_t ledger_left(const struct ledger *l, uid_t uid)
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

bool ledger_take(struct ledger *l, uid_t uid, uint64_t n)
{
    if (n > ledger_left(l, uid))
        return false;
    if (uid == 0) {
        l->of_root += n;
        return true;
    }
    struct ledger_user *u = ledger_find(l, uid);
    if (u)
        u->held += n;
    else if (n)
        l->users[l->n_users++] = (struct ledger_user){.uid = uid, .held = n};
    l->of_users += n;
    return true;
}

void ledger_give(struct ledger *l, uid_t uid, uint64_t n)
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
