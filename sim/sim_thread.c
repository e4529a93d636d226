/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the controller threads: rounds of work, sleep, and pauses. */
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/sim_internal.h"

#define PARK_FIRST_NS (50 * 1000ull)
#define PARK_WATCH_NS (1000 * 1000ull) /* thread 0, which polls all doorbells */
#define PARK_LONG_NS  (4000 * 1000ull) /* thread 0 after a long idle time */
#define LONG_IDLE_NS  (100 * 1000 * 1000ull)
#define POLLED_NS     (20 * 1000ull) /* thread 0 if holders cannot kick */
#define POLLED_SPIN   (10 * 1000 * 1000ull)
#define POLLED_IDLE   (100 * 1000 * 1000ull) /* idle time after which PARK_FIRST_NS applies */
#define PARK_MAX_NS   (100 * 1000 * 1000ull) /* other threads, and a disabled controller */
#define SWEEP_IDLE    64u                    /* rounds */
#define SWEEP_BUSY    4096u
#define WATCH_ROUNDS  16u
#define SPINS_A_LOOK  32u /* idle rounds between two checks for other work */
#define SPINS_A_YIELD 64u /* rounds between two yields, with spare cores */

static bool anyone_parked(struct sim *s, unsigned from)
{
    for (unsigned i = from; i < s->n_threads; i++)
        if (atomic_load(&s->threads[i].parked))
            return true;
    return false;
}

/* Returns true if the owner has seen the last store to the doorbell. */
static bool is_seen(struct sim *s, unsigned q, bool cq)
{
    size_t w = sim_doorbell_word(s, q, cq);

    return atomic_load_explicit(&s->doorbells[w], memory_order_relaxed) ==
           atomic_load_explicit(&s->seen[w], memory_order_relaxed);
}

/* Wakes the owners of changed doorbells. Any thread may call it. */
static bool wake_owners(struct sim *s)
{
    bool any = false;

    for (unsigned q = 0, top = atomic_load(&s->top_queue); q <= top; q++) {
        for (unsigned cq = 0; cq < 2; cq++) {
            if (is_seen(s, q, cq))
                continue;
            sim_wake(&s->threads[sim_owner(s, q, cq)]);
            any = true;
        }
    }
    return any;
}

/*
 * Each side increments the counter, which orders this function against park():
 * the later increment sees the stores before the earlier one. Either the caller
 * sees the parked flag, or the thread sees the doorbell.
 *
 * Thread 0 finds doorbells that are stored to later. `expected` is stored
 * before the parked flag is loaded, and park() loads it after its store, so
 * thread 0 does not sleep for milliseconds. Thread 0 also wakes the other
 * threads, which takes too long for the caller.
 */
void sim_expect(struct nvme_transport *t, unsigned queues)
{
    struct sim *s = sim_of(t);

    atomic_fetch_or(&s->expected, queues > 1 ? SIM_EXPECTED_OF_ALL : SIM_EXPECTED);
    atomic_fetch_add(&s->kicks, 1);
    if (anyone_parked(s, 0) && !wake_owners(s))
        sim_wake(&s->threads[0]);
}

/* Stores of the last holder are processed while they count as its. */
void sim_keep_polling(struct nvme_transport *t, int change)
{
    struct sim *s = sim_of(t);

    sim_pause(s);
    sim_sweep_doorbells(&s->threads[0], 0, s->doorbells_len / sizeof(uint32_t), 1);
    atomic_fetch_add(&s->silent_holders, (unsigned)change);
    sim_resume(s);
    sim_wake_all(s);
}

/*
 * A thread that polls a doorbell or the DMA engine has the latency of one loop.
 * Other work (sweeps, waking of threads) is therefore done only every
 * SPINS_A_LOOK rounds and after a sleep. The counter does not depend on the
 * work found, so regular work does not make it rarer.
 */
static bool looks_around(const struct sim_thread *th, bool worked)
{
    return th->spins == 0 || th->rounds % (worked ? WATCH_ROUNDS : SPINS_A_LOOK) == 0;
}

static void sweep_a_page(struct sim_thread *th)
{
    size_t words = NVME_PAGE_SIZE / sizeof(uint32_t);
    size_t from = th->sweeps++ % (th->s->doorbells_len / NVME_PAGE_SIZE) * words;

    sim_sweep_doorbells(th, from, from + words, 1);
}

/*
 * Checks the words of existing queues while idle, and occasionally one page of
 * all words (1024 loads).
 */
static void look_for_strays(struct sim_thread *th, bool idle)
{
    struct sim *s = th->s;

    if (++th->rounds % (idle ? SWEEP_IDLE : SWEEP_BUSY) == 0)
        sweep_a_page(th);
    else if (idle && looks_around(th, false))
        sim_sweep_doorbells(th, 0, sim_doorbell_word(s, s->cfg.io_queues, true) + 1,
                            (size_t)1 << s->cfg.doorbell_stride);
}

/*
 * Each load is a cache miss, so the loads overlap: doorbells arrive while the
 * DMA engine is polled, and SQEs while its commands are completed.
 */
static void thread_look(struct sim_thread *th, bool at_queues)
{
    for (unsigned i = 0; at_queues && i < th->n_sqs; i++)
        __builtin_prefetch((const void *)th->sqs[i]->doorbell);
    sim_move_poll(th);
    for (unsigned i = 0; at_queues && i < th->n_sqs; i++)
        sim_sq_peek(th, th->sqs[i]);
}

/*
 * Returns true if the thread must stay awake. A command of a lent queue is not
 * a reason: the thread would take further commands from their owner, which then
 * waits for it.
 */
static bool thread_poll_queue(struct sim_thread *th, struct sim_sq *sq)
{
    return sim_sq_poll(th, sq) && (!sq->lent || sq->head != sq->tail);
}

static bool poll_queues(struct sim_thread *th)
{
    bool worked = false;
    unsigned q = th->turn < th->n_sqs ? th->turn : 0;

    th->turn = q + 1;
    for (unsigned i = 0; i < th->n_sqs; i++) {
        worked |= thread_poll_queue(th, th->sqs[q]);
        q = q + 1 < th->n_sqs ? q + 1 : 0;
    }
    return worked;
}

static bool round_of_work(struct sim_thread *th, uint64_t *next_due, bool *admin)
{
    struct sim *s = th->s;
    bool active = s->running && !sim_idle(s);

    atomic_store_explicit(&th->left, false, memory_order_relaxed);
    thread_look(th, active);
    bool worked = sim_move_work(th);
    *next_due = UINT64_MAX;
    *admin = false;
    if (!active) {
        if (sim_hung(s))
            *next_due = atomic_load(&s->hung_until);
        return worked;
    }
    worked |= sim_cq_post_waiting(th);
    worked |= sim_flush_run(th);
    worked |= sim_io_run_held(th, next_due);
    worked |= poll_queues(th);
    sim_move_submit(th);
    if (th->index == 0) {
        *admin = sim_sq_has_new(&s->sqs[0]) || sim_reserve_changed(s) ||
                 (s->admin_due != UINT64_MAX && now_ns() >= s->admin_due);
        look_for_strays(th, !worked);
    }
    return worked;
}

/* Thread 0 wakes others that have work; true if it must stay awake. */
static bool wake_others(struct sim *s, bool look)
{
    unsigned expected = atomic_load_explicit(&s->expected, memory_order_relaxed)
                            ? atomic_exchange(&s->expected, 0)
                            : 0;

    if (expected & SIM_EXPECTED_OF_ALL)
        sim_wake_all(s);
    if (look && anyone_parked(s, 1))
        wake_owners(s);
    return expected != 0;
}

static bool locked_round(struct sim_thread *th, uint64_t *next_due)
{
    bool admin;

    sim_pass_gate(th->s);
    pthread_mutex_lock(&th->lock);
    bool worked = round_of_work(th, next_due, &admin);
    pthread_mutex_unlock(&th->lock);
    if (admin) {
        sim_pause(th->s);
        bool ran = sim_admin_run(th->s);
        sim_resume(th->s);
        worked |= ran;
        if (!ran) /* waits for the other threads */
            sim_nap();
    }
    if (th->index == 0)
        worked |= wake_others(th->s, looks_around(th, worked));
    return worked;
}

static bool news_for(struct sim_thread *th)
{
    struct sim *s = th->s;

    if (atomic_load(&th->stop) || atomic_load_explicit(&s->gate, memory_order_relaxed) ||
        atomic_load(&th->left))
        return true;
    if (th->index == 0 && atomic_load(&s->expected)) /* see sim_expect() */
        return true;
    /*
     * In this state no round polls doorbells. Enabling the controller wakes all
     * threads, and next_due is the end of a hang.
     */
    if (!atomic_load(&s->running) || sim_idle(s))
        return false;
    if (sim_flush_news(th))
        return true;
    for (unsigned q = 0, top = atomic_load(&s->top_queue); q <= top; q++) {
        for (unsigned cq = 0; cq < 2; cq++)
            if (sim_owner(s, q, cq) == th->index && !is_seen(s, q, cq))
                return true;
    }
    return false;
}

/* Sleeps. Returns false if the time has passed. */
static bool park(struct sim_thread *th, uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u)};

    atomic_store(&th->parked, 1);
    atomic_fetch_add(&th->s->kicks, 1); /* see sim_expect() */
    if (!news_for(th))
        syscall(SYS_futex, &th->parked, FUTEX_WAIT_PRIVATE, 1, &ts, NULL, 0);
    return atomic_exchange(&th->parked, 0) == 0;
}

struct rest {
    uint64_t since; /* time of the last work or wake-up */
    uint64_t ns;    /* duration of the next sleep */
};

static bool keeps_polling(const struct sim_thread *th)
{
    return th->index == 0 && atomic_load_explicit(&th->s->silent_holders, memory_order_relaxed);
}

/* Returns true if the machine has spare cores, as spin_us shows. */
static bool has_cores_to_spare(const struct sim_thread *th)
{
    return th->s->spin_us >= SIM_SPIN_US;
}

/* Returns how long to poll, which is longer if there is a spare core. */
static uint64_t spin_ns(const struct sim_thread *th)
{
    return keeps_polling(th) && has_cores_to_spare(th) ? POLLED_SPIN : th->s->spin_us * 1000u;
}

static void spin(struct sim_thread *th)
{
    if (++th->spins % SPINS_A_YIELD == 0 || !has_cores_to_spare(th))
        sched_yield();
}

static uint64_t longest_sleep(struct sim_thread *th, uint64_t idle_ns)
{
    if (th->index != 0 || !atomic_load(&th->s->running))
        return PARK_MAX_NS;
    if (keeps_polling(th))
        return idle_ns < POLLED_IDLE ? POLLED_NS : PARK_FIRST_NS;
    return idle_ns < LONG_IDLE_NS ? PARK_WATCH_NS : PARK_LONG_NS;
}

/* Polls for a while after the last work, and then sleeps, longer each time. */
static void thread_idle(struct sim_thread *th, struct rest *r, uint64_t next_due)
{
    uint64_t now = now_ns(), longest = longest_sleep(th, now - r->since);

    if (now - r->since < spin_ns(th) || atomic_load(&th->moving) ||
        (next_due != UINT64_MAX && next_due < now + PARK_FIRST_NS)) {
        spin(th);
        return;
    }
    th->spins = 0;
    uint64_t ns = r->ns < longest ? r->ns : longest;
    if (next_due != UINT64_MAX && next_due - now < ns)
        ns = next_due - now;
    r->ns = ns * 2;
    if (park(th, ns))
        *r = (struct rest){.since = now_ns(), .ns = PARK_FIRST_NS};
}

/*
 * If there are two processors per thread, each thread is bound to its share of
 * them. Otherwise the scheduler sometimes puts two threads that are woken
 * together on one processor, where one waits for milliseconds while other
 * processors are idle.
 */
static void keep_apart(const struct sim_thread *th)
{
    unsigned n = th->s->n_threads, i = 0;
    cpu_set_t all, mine;

    if (sched_getaffinity(0, sizeof(all), &all) || (unsigned)CPU_COUNT(&all) < 2 * n)
        return;
    CPU_ZERO(&mine);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && i++ % n == th->index)
            CPU_SET(cpu, &mine);
    }
    sched_setaffinity(0, sizeof(mine), &mine);
}

static void *sim_thread_thread_main(void *arg)
{
    struct sim_thread *th = arg;
    struct rest rest = {.since = now_ns(), .ns = PARK_FIRST_NS};
    uint64_t next_due;

    keep_apart(th);
    pthread_setname_np(pthread_self(), "sim");
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* ns; the default doubles a short sleep */
    while (!atomic_load(&th->stop)) {
        if (locked_round(th, &next_due)) {
            rest = (struct rest){.since = now_ns(), .ns = PARK_FIRST_NS};
            th->spins = 1;
        } else {
            thread_idle(th, &rest, next_due);
        }
    }
    return NULL;
}

int sim_threads_start(struct sim *s)
{
    for (unsigned i = 0; i < s->n_threads; i++) {
        struct sim_thread *th = &s->threads[i];

        atomic_store(&th->stop, false);
        int rc = pthread_create(&th->pthread, NULL, sim_thread_thread_main, th);
        if (rc) {
            sim_threads_stop(s);
            return -rc;
        }
        th->started = true;
    }
    return 0;
}

void sim_threads_stop(struct sim *s)
{
    for (unsigned i = 0; i < s->n_threads; i++)
        atomic_store(&s->threads[i].stop, true);
    atomic_fetch_add(&s->kicks, 1); /* see sim_expect() */
    sim_wake_all(s);
    for (unsigned i = 0; i < s->n_threads; i++) {
        if (s->threads[i].started)
            pthread_join(s->threads[i].pthread, NULL);
        s->threads[i].started = false;
    }
}

/* --- Execution by the driver ----------------------------------------------------------------- */

/*
 * A thread of the driver executes commands, which would otherwise wait for a
 * sleeping controller thread: waking it and being woken takes longer than a
 * command. The driver's thread performs the part of a round that concerns its
 * queue, under the lock of the controller thread that owns the queue. Commands
 * with a due time and copies by a DMA engine are left to the controller thread.
 */

/* Tries to get the lock: enough for a short command of another queue. */
#define LOCK_TRIES 256u

/* Returns true if commands complete later, so that the owner must continue. */
static bool leaves_work(const struct sim_thread *th, const struct sim_sq *sq)
{
    bool timed = th->n_heap && th->commands[th->heap[0]].due != SIM_NEVER;

    return timed || sq->head != sq->tail || th->done.head != SIM_NO_COMMAND || th->blocked ||
           atomic_load_explicit(&th->moving, memory_order_relaxed);
}

/* Called with the lock of the queue's owner. */
static bool run_queue(struct sim_thread *th, struct sim_sq *sq)
{
    if (!th->s->running || sim_idle(th->s) || !sq->ring)
        return false;
    sim_sq_peek(th, sq);
    while (sim_sq_poll(th, sq)) {
    }
    sim_move_submit(th);
    return !leaves_work(th, sq);
}

static void lent_leave(struct sim_thread *th)
{
    atomic_fetch_add(&th->s->kicks, 1); /* see sim_expect(); th->left was stored before */
    sim_wake(th);
}

/*
 * Called before the first try, since a controller thread that is awake might
 * otherwise take each command first.
 */
static void note_lent(struct sim_sq *sq)
{
    if (!atomic_load_explicit(&sq->lent, memory_order_relaxed))
        atomic_store_explicit(&sq->lent, true, memory_order_relaxed);
}

void sim_kick_queue(struct nvme_transport *t, uint16_t qid)
{
    struct sim *s = sim_of(t);
    struct sim_thread *th = &s->threads[sim_owner(s, qid, false)];

    note_lent(&s->sqs[qid]);
    for (unsigned i = 0; i < LOCK_TRIES && !atomic_load_explicit(&s->gate, memory_order_relaxed);
         i++) {
        if (pthread_mutex_trylock(&th->lock) == 0) {
            bool done = run_queue(th, &s->sqs[qid]);
            atomic_store(&th->left, !done);
            pthread_mutex_unlock(&th->lock);
            if (!done)
                lent_leave(th);
            return;
        }
        if (is_seen(s, qid, false)) /* so the owner executes the commands */
            return;
    }
    sim_expect(t, 1);
}
