/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes positions of 31 bits in a directory, for 32-bit programs (-o dir32).
 * Such a program cannot read an entry whose d_off, the key of 63 bits, exceeds
 * 31 bits.
 *
 * A position is the upper 31 bits of the key, or the previous entry's position
 * plus one if that is larger. An open directory records the keys that positions
 * do not determine: for the last entry of a reply, and for the last
 * DIR_COOKIES_MAX entries with equal upper bits. Thus a listing returns every
 * name that is not removed once, even if the kernel continues in the middle of
 * a reply. In a directory of a million names about 230 pairs of names have
 * equal upper bits. seekdir(3) to one of them whose record was replaced may
 * miss the other name.
 */
#ifndef FUSEFS_DAEMON_BASE_DIR_COOKIES_H
#define FUSEFS_DAEMON_BASE_DIR_COOKIES_H

#include <pthread.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define DIR_COOKIES_MAX   512u
#define DIR_COOKIES_LIMIT ((UINT64_C(1) << 31) - 1) /* the largest position */

struct dir_cookie {
    uint64_t cookie, key;
};

struct dir_cookies {
    pthread_mutex_t lock;        /* held by the caller from begin to end */
    struct dir_cookie previous;  /* last entry of the listing, or the position where it began */
    struct dir_cookie reply_end; /* last entry of the previous reply */
    unsigned first, count;       /* of the ring */
    unsigned fresh;              /* number of records since begin */
    struct dir_cookie ring[DIR_COOKIES_MAX];
};

/* Returns NULL if memory is short. */
struct dir_cookies *dir_cookies_new(void);
/* NULL does nothing. */
void dir_cookies_free(struct dir_cookies *c);
/*
 * Begins a reply with the entries after a position, and returns the key after
 * which they begin. Position 0 discards all records, as rewinddir(3) may.
 */
uint64_t dir_cookies_begin(struct dir_cookies *c, uint64_t cookie);
/*
 * Returns the position of the next entry of the reply, or 0 if the reply must
 * end before it. Keys must increase. Records nothing.
 */
uint64_t dir_cookies_next(const struct dir_cookies *c, uint64_t key);
/* Records an entry that was added to the reply. */
void dir_cookies_add(struct dir_cookies *c, uint64_t key, uint64_t cookie);
void dir_cookies_end(struct dir_cookies *c);

__END_DECLS

#endif
