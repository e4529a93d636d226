/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies between the media and the memory that a command names. The media is
 * usually a mapping of a file. An access to a part that the disk has no room
 * for, or cannot read, raises SIGBUS, which ends the copy.
 */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "sim/sim_internal.h"

/*
 * A driver may read and write the same LBA concurrently. The data of that read
 * is undefined, which is not a mistake, but ThreadSanitizer would report it. In
 * its build the accesses to the media are therefore hidden from it, and the
 * accesses to memory, where a race is a mistake of the driver, are reported
 * explicitly.
 */
#if defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#endif

#ifdef SIM_TSAN
void __tsan_read_range(void *addr, unsigned long len);
void __tsan_write_range(void *addr, unsigned long len);

__attribute__((no_sanitize("thread"))) static void sim_copy_unseen(void *to, const void *from,
                                                                   size_t len)
{
    volatile unsigned char *d = to;
    const volatile unsigned char *s = from;

    for (; len >= 8 && !((uintptr_t)d & 7) && !((uintptr_t)s & 7); len -= 8, d += 8, s += 8)
        *(volatile uint64_t *)d = *(const volatile uint64_t *)s;
    while (len--)
        *d++ = *s++;
}

static void sim_copy_copy_out(void *target, const void *media, size_t len)
{
    __tsan_write_range(target, len);
    sim_copy_unseen(target, media, len);
}

static void sim_copy_copy_in(void *media, const void *target, size_t len)
{
    __tsan_read_range((void *)(uintptr_t)target, len);
    sim_copy_unseen(media, target, len);
}
#else
static void sim_copy_copy_out(void *target, const void *media, size_t len)
{
    memcpy(target, media, len);
}

static void sim_copy_copy_in(void *media, const void *target, size_t len)
{
    memcpy(media, target, len);
}
#endif

/*
 * Describes the current copy of this thread: where to continue after a SIGBUS,
 * and the range of the media.
 */
static _Thread_local struct {
    sigjmp_buf env;
    uintptr_t media; /* whole pages */
    size_t len;      /* 0 without a copy */
} copying;
static struct sigaction before;

/* Passes a foreign SIGBUS on, or takes the default action. */
static void pass_on(int sig, siginfo_t *info, void *context)
{
    bool has_handler = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;

    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (has_handler) {
        before.sa_handler(sig);
    } else if (before.sa_handler == SIG_DFL || info->si_code > 0) {
        signal(sig, SIG_DFL);
        raise(sig); /* blocked until this handler returns */
    }
}

/* Handles SIGBUS. One sent by kill(2) has a code of 0 or less. */
static void copy_on_sigbus(int sig, siginfo_t *info, void *context)
{
    if (info->si_code > 0 && (uintptr_t)info->si_addr - copying.media < copying.len) {
        /* siglongjmp() leaves the handler, so the signal mask is restored. */
        pthread_sigmask(SIG_SETMASK, &((const ucontext_t *)context)->uc_sigmask, NULL);
        siglongjmp(copying.env, 1);
    }
    pass_on(sig, info, context);
}

static void copy_install(void)
{
    const struct sigaction sa = {.sa_sigaction = copy_on_sigbus, .sa_flags = SA_SIGINFO};

    sigaction(SIGBUS, &sa, &before);
}

void sim_copy_guard(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, copy_install);
}

static void copy_begin(const void *media, size_t len)
{
    uintptr_t in_page = (uintptr_t)media & (NVME_PAGE_SIZE - 1);

    copying.media = (uintptr_t)media - in_page;
    copying.len = in_page + len;
    atomic_signal_fence(memory_order_seq_cst); /* the handler reads the fields */
}

static void copy_end(void)
{
    atomic_signal_fence(memory_order_seq_cst); /* accesses end before the fields are cleared */
    copying.len = 0;
}

static bool try(void (*copy)(void *, const void *, size_t), void *to, const void *from, size_t len,
                const void *media)
{
    bool whole = sigsetjmp(copying.env, 0) == 0;

    if (whole) {
        copy_begin(media, len);
        copy(to, from, len);
    }
    copy_end();
    return whole;
}

bool sim_copy_to_target(void *target, const void *media, size_t len)
{
    return try(sim_copy_copy_out, target, media, len, media);
}

bool sim_copy_from_target(void *media, const void *target, size_t len)
{
    return try(sim_copy_copy_in, media, target, len, media);
}
