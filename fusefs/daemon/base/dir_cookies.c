/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps keys of directory entries to positions of 31 bits, and back. */
#include "fusefs/daemon/base/dir_cookies.h"

#include <stdbool.h>
#include <stdlib.h>

#define DOTS       2u  /* "." and ".." have the keys and positions 1 and 2 */
#define KEY_SHIFT  32u /* shifts keys, which have 63 bits */
#define LOWER_BITS ((UINT64_C(1) << KEY_SHIFT) - 1)
/* Positions above this one go in order to the entries of the largest keys. */
#define MOST_PLAIN (DIR_COOKIES_LIMIT - DIR_COOKIES_MAX)

struct dir_cookies *dir_cookies_new(void)
{
    struct dir_cookies *c = calloc(1, sizeof(*c));

    if (c)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

void dir_cookies_free(struct dir_cookies *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static uint64_t cookies_plain(uint64_t key)
{
    uint64_t plain = key <= DOTS ? key : key >> KEY_SHIFT;

    return plain < MOST_PLAIN ? plain : MOST_PLAIN;
}

static struct dir_cookie *cookies_find(const struct dir_cookies *c, uint64_t cookie)
{
    for (unsigned i = 0; i < c->count; i++) {
        const struct dir_cookie *e = &c->ring[(c->first + i) % DIR_COOKIES_MAX];
        if (e->cookie == cookie)
            return (struct dir_cookie *)e;
    }
    return NULL;
}

static uint64_t cookies_key(const struct dir_cookies *c, uint64_t cookie)
{
    const struct dir_cookie *e = cookies_find(c, cookie);

    if (c->reply_end.cookie == cookie)
        return c->reply_end.key;
    if (e)
        return e->key;
    return cookie <= DOTS ? cookie : cookie << KEY_SHIFT | LOWER_BITS;
}

uint64_t dir_cookies_begin(struct dir_cookies *c, uint64_t cookie)
{
    pthread_mutex_lock(&c->lock);
    if (cookie == 0) {
        c->count = 0;
        c->reply_end = (struct dir_cookie){0};
    }
    /* lseek(2) can set a position that no entry has. */
    if (cookie > DIR_COOKIES_LIMIT)
        cookie = DIR_COOKIES_LIMIT;
    c->previous = (struct dir_cookie){cookie, cookies_key(c, cookie)};
    c->fresh = 0;
    return c->previous.key;
}

uint64_t dir_cookies_next(const struct dir_cookies *c, uint64_t key)
{
    uint64_t plain = cookies_plain(key), next = c->previous.cookie + 1;
    uint64_t cookie = plain > next ? plain : next;

    return c->fresh + 2 <= DIR_COOKIES_MAX && cookie <= DIR_COOKIES_LIMIT ? cookie : 0;
}

/* Replaces the key of a recorded position, or else the oldest record. */
static void cookies_record(struct dir_cookies *c, struct dir_cookie what)
{
    struct dir_cookie *e = cookies_find(c, what.cookie);

    if (e) {
        e->key = what.key;
        return;
    }
    c->fresh++;
    c->ring[(c->first + c->count) % DIR_COOKIES_MAX] = what;
    if (c->count < DIR_COOKIES_MAX)
        c->count++;
    else
        c->first = (c->first + 1) % DIR_COOKIES_MAX;
}

void dir_cookies_add(struct dir_cookies *c, uint64_t key, uint64_t cookie)
{
    const struct dir_cookie now = {cookie, key};
    bool plain = cookie == cookies_plain(key) && cookie < MOST_PLAIN;
    bool follows = cookie == c->previous.cookie + 1 && cookies_plain(key) < cookie;

    /*
     * A listing from the plain key of the previous position would skip this
     * entry.
     */
    if (follows && c->previous.cookie)
        cookies_record(c, c->previous);
    if (!plain || cookies_find(c, cookie))
        cookies_record(c, now);
    c->previous = now;
}

void dir_cookies_end(struct dir_cookies *c)
{
    c->reply_end = c->previous;
    pthread_mutex_unlock(&c->lock);
}
