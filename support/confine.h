/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares functions by which a process drops rights before it reads untrusted
 * data: capabilities, files (Landlock) and system calls (seccomp). Each
 * function permanently restricts the calling thread and the threads and
 * processes that it starts later. A process calls them before it starts
 * threads.
 *
 * The functions return 0 or -errno; -ENOSYS means that the kernel or the build
 * lacks the mechanism.
 */
#ifndef SUPPORT_CONFINE_H
#define SUPPORT_CONFINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/*
 * Sets no_new_privs, which the other functions require in a process without
 * CAP_SYS_ADMIN.
 */
int confine_privileges(void);
/* Drops all capabilities except `kept`, a mask of 1 << CAP_*. */
int confine_capabilities(uint64_t kept);

/* --- Files ----------------------------------------------------------------------------------- */

/* Describes rights on a file, or on a directory and all files below it. */
#define CONFINE_READ   1u /* list directories; read, execute and ioctl(2) files */
#define CONFINE_WRITE  2u /* read, write, truncate and ioctl(2) files */
#define CONFINE_CREATE 4u /* create and remove regular files */

/*
 * Objects of other processes that become unreachable if the kernel supports it.
 */
#define CONFINE_SIGNALS  1u /* signals to other processes: Linux 6.12 */
#define CONFINE_ABSTRACT 2u /* abstract UNIX sockets of other processes: Linux 6.12 */

/*
 * Starts a set of rules. Returns a descriptor, or -errno. After
 * confine_files_end() only files that a rule names can be opened, and TCP ports
 * can be neither bound nor connected to (Linux 6.7).
 */
int confine_files_begin(unsigned scopes);
/* Adds a rule. Ignores a path that does not exist. */
int confine_files_allow(int rules, const char *path, unsigned rights);
/*
 * Enforces the rules unless err is set, and closes them. Returns err, or 0 or
 * -errno.
 */
int confine_files_end(int rules, int err);

/* --- System calls ---------------------------------------------------------------------------- */

/*
 * Refuses calls that start programs, make sockets other than UNIX ones, change
 * mounts or the kernel, access other processes, or send them signals. Also
 * refuses io_uring, whose requests no filter sees.
 *
 * With `listed`, also refuses every call that confine_calls.c does not list.
 * The remaining calls work on open files, files that can be opened, memory and
 * threads. No socket can be made, bound or connected, and no memory can be made
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
    unsigned rights;  /* mask of CONFINE_READ, _WRITE, _CREATE */
};
/*
 * Confines a program that reads a device and ends. Drops all of the rights
 * above except the paths and the capabilities `kept`. A build with a sanitizer
 * drops only capabilities. Skips mechanisms that the kernel or the build lacks.
 */
void confine_program(const struct confine_path *paths, unsigned count, uint64_t kept);

__END_DECLS

#endif
