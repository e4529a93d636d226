/* SPDX-License-Identifier: BSD-2-Clause */
/* Closes descriptors received from clients in threads. */
#include "fusefs/daemon/base/closer.h"

#include <linux/close_range.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/clock.h"
#include "support/thread.h"

#define ENTRIES (sizeof(((struct closer *)0)->entries) / sizeof(struct closing *))
/*
 * OF_ONE is the maximum number of entries of a user. Programs send only memory, which is
 * not closed here, so a low limit costs them nothing. Many users must collude to hold all
 * entries.
 */
#define OF_ONE      2u
#define OF_ROOT     8u /* reserved for root */
#define END_WAIT_MS 1000u

struct closing {
    pthread_t thread;
    uid_t uid;
    /*
     * Set by the thread at its end, and by closer_end() when it stops waiting.
     * The second of the two frees the struct.
     */
    _Atomic bool left;
    size_t n;
    int fds[];
};

/* A descriptor that the exiting thread closes last. */
struct held {
    int fd;
    sem_t holds, closed;
};

/*
 * Ends with a private table of descriptors, in which only h->fd is open. Without
 * CLOSE_RANGE_UNSHARE (Linux before 5.9) the thread holds nothing.
 */
static void *closer_hold(void *arg)
{
    struct held *h = arg;
    unsigned fd = (unsigned)h->fd;

    if (close_range(fd + 1, ~0u, CLOSE_RANGE_UNSHARE) == 0 && fd > 0)
        close_range(0, fd - 1, 0);
    sem_post(&h->holds);
    sem_wait(&h->closed);
    return NULL;
}

void closer_discard(int socket)
{
    pthread_t thread;
    struct held h = {.fd = socket};

    sem_init(&h.holds, 0, 0);
    sem_init(&h.closed, 0, 0);
    bool held = pthread_create(&thread, NULL, closer_hold, &h) == 0;
    if (held)
        sem_wait(&h.holds);
    close(socket);
    if (held) {
        sem_post(&h.closed);
        pthread_join(thread, NULL);
    }
    sem_destroy(&h.closed);
    sem_destroy(&h.holds);
}

static void *close_all(void *arg)
{
    struct closing *k = arg;
    struct stat st;

    for (size_t i = 0; i < k->n; i++) {
        if (fstat(k->fds[i], &st) == 0 && S_ISSOCK(st.st_mode))
            closer_discard(k->fds[i]);
        else
            close(k->fds[i]);
    }
    if (atomic_exchange(&k->left, true))
        free(k);
    return NULL;
}

static void reap(struct closer *c)
{
    for (size_t i = 0; i < ENTRIES; i++) {
        struct closing *k = c->entries[i];
        if (!k || !atomic_load(&k->left))
            continue;
        pthread_join(k->thread, NULL);
        free(k);
        c->entries[i] = NULL;
    }
}

static struct closing **free_entry(struct closer *c)
{
    reap(c);
    for (size_t i = 0; i < ENTRIES; i++) {
        if (!c->entries[i])
            return &c->entries[i];
    }
    return NULL;
}

/*
 * Without a free entry or a thread the descriptors remain open: they are lost,
 * but the caller does not block.
 */
void closer_close(struct closer *c, const int *fds, size_t n, uid_t uid)
{
    struct closing **entry = n ? free_entry(c) : NULL;
    struct closing *k = entry ? calloc(1, sizeof(*k) + n * sizeof(fds[0])) : NULL;

    if (!k)
        return;
    k->uid = uid;
    k->n = n;
    memcpy(k->fds, fds, n * sizeof(fds[0]));
    if (pthread_create(&k->thread, NULL, close_all, k) == 0)
        *entry = k;
    else
        free(k);
}

bool closer_is_busy(struct closer *c, uid_t uid)
{
    size_t all = 0;
    size_t of_user = 0;

    reap(c);
    for (size_t i = 0; i < ENTRIES; i++) {
        all += c->entries[i] != NULL;
        of_user += c->entries[i] && c->entries[i]->uid == uid;
    }
    return of_user >= OF_ONE || all >= (uid ? ENTRIES - OF_ROOT : ENTRIES);
}

static void base_closer_end(struct closing *k, uint64_t until)
{
    pthread_t thread = k->thread;

    if (join_until(thread, until) == 0) {
        free(k);
        return;
    }
    pthread_detach(thread);
    if (atomic_exchange(&k->left, true))
        free(k);
}

void closer_end(struct closer *c)
{
    uint64_t until = deadline_after_ms(END_WAIT_MS);

    for (size_t i = 0; i < ENTRIES; i++) {
        if (c->entries[i])
            base_closer_end(c->entries[i], until);
        c->entries[i] = NULL;
    }
}
