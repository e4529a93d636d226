/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counts mistakes of the driver, records the last ones as text, and adds up the
 * statistics of the threads.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim/sim_internal.h"

static const struct {
    const char *name, *text;
} names[SIM_EV_COUNT] = {
#define SIM_EVENT_NAME(name, text) {#name, text},
    SIM_EVENTS(SIM_EVENT_NAME)
#undef SIM_EVENT_NAME
};

const char *sim_event_name(enum sim_event e)
{
    return (unsigned)e < SIM_EV_COUNT ? names[e].name : "UNKNOWN";
}

const char *sim_event_text(enum sim_event e)
{
    return (unsigned)e < SIM_EV_COUNT ? names[e].text : "unknown event";
}

static uint64_t commands_so_far(struct sim *s)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < s->n_threads; i++)
        n += atomic_load_explicit(&s->threads[i].count.commands, memory_order_relaxed);
    return n;
}

/*
 * Returns true for events that holders of leased queues may cause: for a short
 * time they store to doorbells and have commands in flight after their queues
 * and memory are gone.
 */
static bool may_be_a_holders(struct sim *s, enum sim_event e)
{
    return atomic_load_explicit(&s->silent_holders, memory_order_relaxed) &&
           (e == SIM_EV_DB_INVALID_QUEUE || e == SIM_EV_PRP_UNMAPPED ||
            e == SIM_EV_UNMAP_IN_FLIGHT);
}

void sim_flag(struct sim *s, enum sim_event e, const char *fmt, ...)
{
    char detail[96];
    va_list ap;

    assert(e < SIM_EV_COUNT);
    if (may_be_a_holders(s, e))
        return;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&s->event_lock);
    snprintf(s->violations[s->n_violations++ % SIM_VIOLATIONS_KEPT], SIM_VIOLATION_TEXT,
             "%s: %s (seed %llu, command %llu)", names[e].name, detail,
             (unsigned long long)s->cfg.seed, (unsigned long long)commands_so_far(s));
    pthread_mutex_unlock(&s->event_lock);
    atomic_fetch_add_explicit(&s->events[e], 1, memory_order_relaxed);
}

size_t sim_violations_text(struct sim *s, char *buf, size_t len)
{
    size_t used = 0;

    if (len > 0)
        buf[0] = '\0';
    pthread_mutex_lock(&s->event_lock);
    uint64_t n = s->n_violations;
    uint64_t i = n > SIM_VIOLATIONS_KEPT ? n - SIM_VIOLATIONS_KEPT : 0;
    for (; i < n && used + 1 < len; i++) {
        const char *line = s->violations[i % SIM_VIOLATIONS_KEPT];
        int wrote = snprintf(buf + used, len - used, "%s\n", line);
        used += (size_t)wrote < len - used ? (size_t)wrote : len - used - 1;
    }
    pthread_mutex_unlock(&s->event_lock);
    return used;
}

void sim_forgive(struct sim *s, enum sim_event e)
{
    atomic_store_explicit(&s->events[e], 0, memory_order_relaxed);
}

uint64_t sim_violations(struct sim *s)
{
    uint64_t n = 0;

    for (unsigned e = 0; e < SIM_EV_COUNT; e++)
        n += atomic_load_explicit(&s->events[e], memory_order_relaxed);
    return n;
}

static uint64_t event_load(_Atomic uint64_t *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

void sim_get_stats(struct sim *s, struct sim_stats *out)
{
    *out = (struct sim_stats){0};
    for (unsigned i = 0; i < s->n_threads; i++) {
        struct sim_counters *c = &s->threads[i].count;

        out->commands += event_load(&c->commands);
        out->reads += event_load(&c->reads);
        out->writes += event_load(&c->writes);
        out->flushes += event_load(&c->flushes);
        out->read_bytes += event_load(&c->read_bytes);
        out->written_bytes += event_load(&c->written_bytes);
        out->doorbells += event_load(&c->doorbells);
        out->device_bytes += event_load(&c->device_bytes);
    }
    for (unsigned e = 0; e < SIM_EV_COUNT; e++)
        out->events[e] = event_load(&s->events[e]);
}
