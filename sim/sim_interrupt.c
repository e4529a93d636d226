/* SPDX-License-Identifier: BSD-2-Clause */
/* Signals the eventfds of MSI-X vectors. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "sim/sim_internal.h"

#define WORD_BITS 64u

static unsigned interrupt_words(const struct sim_interrupts *is)
{
    return (is->n + WORD_BITS - 1) / WORD_BITS;
}

int sim_interrupts_init(struct sim_interrupts *is, unsigned n)
{
    *is = (struct sim_interrupts){.n = n, .bell = -1, .current = -1};
    if (!n)
        return 0;
    is->events = malloc(n * sizeof(*is->events));
    is->pending = calloc(interrupt_words(is), sizeof(*is->pending));
    is->bell = eventfd(0, EFD_CLOEXEC);
    if (!is->events || !is->pending || is->bell < 0) {
        is->n = 0;
        return is->bell < 0 ? -errno : -ENOMEM;
    }
    for (unsigned v = 0; v < n; v++)
        is->events[v] = -1;
    return 0;
}

void sim_interrupt_raise(struct sim_interrupts *is, unsigned vector)
{
    uint64_t bit = 1ull << (vector % WORD_BITS);

    /* This store follows that of the completion, which the client then sees. */
    if (!(atomic_fetch_or(&is->pending[vector / WORD_BITS], bit) & bit))
        eventfd_write(is->bell, 1);
}

/*
 * The bit is cleared first: a completion that comes during the write sets it.
 * This function and interrupt_run() may be cancelled. They have no variables on
 * the stack whose address is taken, because AddressSanitizer's marks around
 * those would outlive the thread.
 */
static void interrupt_signal(struct sim_interrupts *is, unsigned vector)
{
    static const uint64_t one = 1;

    is->current = (int)vector;
    atomic_fetch_and(&is->pending[vector / WORD_BITS], ~(1ull << (vector % WORD_BITS)));
    if (is->events[vector] >= 0)
        (void)!write(is->events[vector], &one, sizeof(one));
    is->current = -1;
}

/* Runs until it is cancelled in read() or write(). */
static void *interrupt_run(void *arg)
{
    struct sim_interrupts *is = arg;

    for (;;) {
        eventfd_read(is->bell, &is->rung);
        for (unsigned w = 0; w < interrupt_words(is); w++) {
            uint64_t bits = atomic_load(&is->pending[w]);
            for (; bits; bits &= bits - 1)
                interrupt_signal(is, w * WORD_BITS + (unsigned)__builtin_ctzll(bits));
        }
    }
    return NULL;
}

static void interrupts_stop(struct sim_interrupts *is)
{
    if (!is->started)
        return;
    pthread_cancel(is->thread);
    pthread_join(is->thread, NULL);
    is->started = false;
    if (is->current >= 0) /* the vector was cancelled before or after the signal */
        sim_interrupt_raise(is, (unsigned)is->current);
    is->current = -1;
}

/* Starts a thread and wakes it, since the former one may have ended after it was woken. */
static int interrupts_start(struct sim_interrupts *is)
{
    int rc = -pthread_create(&is->thread, NULL, interrupt_run, is);

    is->started = rc == 0;
    eventfd_write(is->bell, 1);
    return rc;
}

static void interrupt_set(struct sim_interrupts *is, unsigned vector, int event)
{
    if (is->events[vector] >= 0)
        close(is->events[vector]);
    is->events[vector] = event;
}

/* A write to a pipe or socket of the client could end this process. */
static bool interrupt_is_event(int fd)
{
    char link[64], target[64] = "";

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return readlink(link, target, sizeof(target) - 1) > 0 &&
           strcmp(target, "anon_inode:[eventfd]") == 0;
}

/* Duplicates the eventfds. On an error it returns -errno and keeps no duplicate. */
static int interrupt_duplicate(const int *events, unsigned n, int *out)
{
    for (unsigned i = 0; i < n; i++) {
        out[i] = events ? fcntl(events[i], F_DUPFD_CLOEXEC, 0) : -1;
        if (!events || out[i] >= 0)
            continue;
        int rc = -errno;
        while (i > 0)
            close(out[--i]);
        return rc;
    }
    return 0;
}

int sim_set_interrupts(struct sim *s, unsigned first, unsigned n, const int *events)
{
    struct sim_interrupts *is = &s->interrupts;
    int copies[SIM_MAX_VECTORS] = {0};

    if (first > is->n || n > is->n - first)
        return -EINVAL;
    for (unsigned i = 0; events && i < n; i++)
        if (!interrupt_is_event(events[i]))
            return -EINVAL;
    int rc = interrupt_duplicate(events, n, copies);
    if (rc || !n)
        return rc;
    interrupts_stop(is);
    for (unsigned i = 0; i < n; i++)
        interrupt_set(is, first + i, copies[i]);
    return interrupts_start(is);
}

int sim_trigger_interrupt(struct sim *s, unsigned vector)
{
    if (vector >= s->interrupts.n)
        return -EINVAL;
    sim_interrupt_raise(&s->interrupts, vector);
    return 0;
}

void sim_interrupts_free(struct sim_interrupts *is)
{
    interrupts_stop(is);
    for (unsigned v = 0; v < is->n; v++)
        interrupt_set(is, v, -1);
    if (is->bell >= 0)
        close(is->bell);
    free(is->events);
    free((void *)is->pending);
}
