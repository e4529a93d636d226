/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads for work that the caller does not wait for. */
#ifndef CLIENT_LIB_IO_THREADS_H
#define CLIENT_LIB_IO_THREADS_H

struct io_threads;

struct work {
    struct work *next;
    void (*run)(struct work *w); /* may free it */
};

/* At most `threads`, made as they are needed. */
int io_threads_new(unsigned threads, struct io_threads **out);
/* Jobs submitted before are done first. NULL does nothing. */
void io_threads_free(struct io_threads *w);
/* One thread is there at least, so that io_threads_give() does not fail. -errno: none could be
 * made. */
int io_threads_ready(struct io_threads *w);
/* In order, each as soon as a thread is free. -errno: not one thread could be made. */
int io_threads_give(struct io_threads *w, struct work *work);

#endif
