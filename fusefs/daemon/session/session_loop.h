/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the threads of a session. Each receives a request and serves it.
 *
 * Only RECEIVERS threads wait for requests at a time, so that their buffers and
 * stacks stay in the processor's cache. When all of them serve requests,
 * another thread waits, and is started if necessary: SESSION_THREADS run from
 * the beginning, and up to SESSION_THREADS_MAX if requests take long, as
 * fsync(2) does while the drive flushes.
 *
 * No thread is cancelled. At the end of the session a thread in read(2) is
 * woken by a signal.
 */
#ifndef FUSEFS_DAEMON_SESSION_SESSION_LOOP_H
#define FUSEFS_DAEMON_SESSION_SESSION_LOOP_H

struct daemon;
struct session_loop;

/* Returns 0 or -errno. */
int session_loop_new(struct daemon *d, struct session_loop **out);
/*
 * Receives and serves requests until the end of the session. Returns 0, or
 * -errno if the first SESSION_THREADS threads could not be started; they all
 * are needed, since a request may wait for another one. The caller then calls
 * session_loop_join().
 */
int session_loop_run(struct session_loop *loop);
/*
 * Cancels the transfers of all threads and workers, so that later ones end with
 * EINTR, and waits for the requests that are being served.
 */
void session_loop_join(struct session_loop *loop);
/* Ends the session, so that session_loop_run() returns. */
void session_loop_end(struct session_loop *loop);
void session_loop_free(struct session_loop *loop);

#endif
