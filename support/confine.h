/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rights that a process gives up before it reads data that it does not trust:
 * capabilities, files (Landlock) and system calls (seccomp). Each function
 * restricts the calling thread and the threads and processes that it starts
 * later, for good. A process calls them before it starts threads.
 *
 * The functions return 0 or -errno; -ENOSYS means that the kernel or the build
 * lacks the mechanism.
 */
#ifndef SUPPORT_CONFINE_H
#define SUPPORT_CONFINE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets no_new_privs, which the other functions need without CAP_SYS_ADMIN. */
int confine_privileges(void);
/* Gives up all capabilities except `kept`, a mask of 1 << CAP_*. */
int confine_capabilities(uint64_t kept);

/* --- Files ----------------------------------------------------------------------------------- */

/* Rights on a file, or on a directory and all files below it. */
#define CONFINE_READ   1u /* to list directories, and to read, execute and ioctl(2) files */
#define CONFINE_WRITE  2u /* also to truncate and ioctl(2) files */
#define CONFINE_CREATE 4u /* to create and remove regular files */

/* What the process may not reach outside itself, where the kernel supports it. */
#define CONFINE_SIGNALS  1u /* signals to other processes: Linux 6.12 */
#define CONFINE_ABSTRACT 2u /* abstract UNIX sockets of other processes: Linux 6.12 */

/*
 * Starts a set of rules. Returns a descriptor, or -errno. From
 * confine_files_end() on no file can be opened that no rule names, and TCP
 * ports can be neither bound nor connected to (Linux 6.7).
 */
int confine_files_begin(unsigned scopes);
/* Adds a rule. A path that does not exist needs none. */
int confine_files_allow(int rules, const char *path, unsigned rights);
/* Puts the rules in force unless err is set, and closes them. Returns err, 0 or -errno. */
int confine_files_end(int rules, int err);

/* --- System calls ---------------------------------------------------------------------------- */

/*
 * Without `listed`, refuses calls that start programs, make sockets other than
 * UNIX ones, change mounts or the kernel, reach into other processes, or send
 * them signals, and io_uring, whose requests no filter sees.
 *
 * With `listed`, also refuses every call that confine_calls.c does not list:
 * what is left works on open files, on files that can be opened, memory and
 * threads. No socket can be made, bound or connected, no memory be made
 * executable. Refused calls fail with EPERM.
 */
int confine_calls(bool listed);

/* --- All of it ------------------------------------------------------------------------------- */

/* Sanitizers open files and start programs when they report. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFINE_SANITIZED true
#else
#define CONFINE_SANITIZED false
#endif

struct confine_path {
    const char *path; /* NULL: none */
    unsigned rights;  /* CONFINE_READ and the like */
};
/*
 * Gives up everything above except the paths and the capabilities `kept`, and
 * with a sanitizer only capabilities. A part that the kernel or the build lacks
 * is left out. For programs that read a device and end.
 */
void confine_program(const struct confine_path *paths, unsigned count, uint64_t kept);

#ifdef __cplusplus
}
#endif

#endif
