/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The threads of a session: each receives a request and serves it.
 *
 * Few threads wait for requests at a time (RECEIVERS): their buffers and stacks stay in the
 * processor's cache. When all of them serve requests, one of the remaining threads waits, too, or
 * one more: SESSION_THREADS run from the beginning, at most SESSION_THREADS_MAX when requests take
 * long, as fsync(2) does while the drive flushes.
 *
 * No thread is cancelled. At the end of the session a thread in read(2) is woken by a signal.
 */
#ifndef FUSEFS_DAEMON_SESSION_SESSION_LOOP_H
#define FUSEFS_DAEMON_SESSION_SESSION_LOOP_H

struct daemon;
struct session_loop;

/* 0 or -errno. */
int session_loop_new(struct daemon *d, struct session_loop **out);
/*
 * Receives and serves requests until the end of the session. 0; -errno: the first SESSION_THREADS
 * could not be started, of which a request may wait for another one. Afterwards:
 * session_loop_join().
 */
int session_loop_run(struct session_loop *loop);
/*
 * Cancels the transfers of all threads and workers, later ones end with EINTR, and waits until the
 * requests being served have ended.
 */
void session_loop_join(struct session_loop *loop);
/* Ends the session: session_loop_run() returns. */
void session_loop_end(struct session_loop *loop);
void session_loop_free(struct session_loop *loop);

#endif
