/*
 * Threads that close descriptors received from clients.
 */
#include "fusefs/daemon/closer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "fusefs/daemon/join.h"
#include "support/clock.h"

#define SLOTS       (sizeof(((struct closer *)0)->slots) / sizeof(struct closing *))
#define OF_ONE      4u /* slots of one user */
#define END_WAIT_MS 1000u

struct closing {
    pthread_t thread;
    int fd;
    uid_t uid;
    /*
     * Set by the thread at its end, and by closer_end() when it stops waiting.
     * The second of the two frees the struct.
     */
    _Atomic bool left;
};

static void *close_it(void *arg)
{
    struct closing *k = arg;
    close(k->fd);
    if (atomic_exchange(&k->left, true))
        free(k);
    return NULL;
}

static void reap(struct closer *c)
{
    for (size_t i = 0; i < SLOTS; i++) {
        struct closing *k = c->slots[i];
        if (!k || !atomic_load(&k->left))
            continue;
        pthread_join(k->thread, NULL);
        free(k);
        c->slots[i] = NULL;
    }
}

static struct closing **free_slot(struct closer *c)
{
    reap(c);
    for (size_t i = 0; i < SLOTS; i++) {
        if (!c->slots[i])
            return &c->slots[i];
    }
    return NULL;
}

/*
 * Without a free slot or a thread, fd remains open: one descriptor is lost, but
 * the caller does not block.
 */
void closer_close(struct closer *c, int fd, uid_t uid)
{
    struct closing **slot = free_slot(c);
    struct closing *k = slot ? calloc(1, sizeof(*k)) : NULL;
    if (!k)
        return;
    k->fd = fd;
    k->uid = uid;
    if (pthread_create(&k->thread, NULL, close_it, k) == 0)
        *slot = k;
    else
        free(k);
}

bool closer_is_busy(struct closer *c, uid_t uid)
{
    size_t all = 0;
    size_t of_user = 0;
    reap(c);
    for (size_t i = 0; i < SLOTS; i++) {
        all += c->slots[i] != NULL;
        of_user += c->slots[i] && c->slots[i]->uid == uid;
    }
    /* One message carries up to OF_ONE descriptors. */
    return of_user >= OF_ONE || all > SLOTS - OF_ONE;
}

static void end(struct closing *k, uint64_t until)
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
    for (size_t i = 0; i < SLOTS; i++) {
        if (c->slots[i])
            end(c->slots[i], until);
        c->slots[i] = NULL;
    }
}
