/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon over a simulated drive with fault injection during the mount. In
 * C, because the daemon's headers are C11.
 *
 * usage: puppet DEVICE MOUNTPOINT -f [-o OPTION,...]
 *
 * Standard input is a socket: one command per line, answered by a line, "ok" or
 * the error.
 *
 * fault KIND OPCODE QID SKIP TIMES STATUS DELAY_MS   sim_add_fault(); OPCODE -1: any
 * clear | remove | stick | ask_back                  sim_clear_faults(), sim_remove(), ...
 * power_cut SEED                                     sim_power_cut()
 *
 * The environment removes abilities of the drive: PUPPET_NO_RESET,
 * PUPPET_NO_ABORT. With PUPPET_KEEP_DOORBELLS its doorbells are not shared.
 * With PUPPET_ABORTED every session thread gets ECONNABORTED at the end of the
 * connection, as otherwise happens by chance.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include <errno.h>
#include <fcntl.h>
#include <fuse_opt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/session/fuse_session.h"
#include "fusefs/daemon/session/shutdown.h"
#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/sandbox.h"
#include "sim/sim.h"

ssize_t __real_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len);

ssize_t __wrap_read(int fd, void *buf, size_t len)
{
    ssize_t n = __real_read(fd, buf, len);

    if (n < 0 && errno == ENODEV && getenv("PUPPET_ABORTED"))
        errno = ECONNABORTED;
    return n;
}

static const char *const kinds[] = {
    [SIM_FAULT_STATUS] = "status", [SIM_FAULT_LOSE] = "lose",     [SIM_FAULT_LATE] = "late",
    [SIM_FAULT_REPEAT] = "repeat", [SIM_FAULT_FATAL] = "fatal",   [SIM_FAULT_CORRUPT] = "corrupt",
    [SIM_FAULT_HANG] = "hang",     [SIM_FAULT_REMOVE] = "remove",
};

/* Parses n numbers after blanks. */
static bool take_numbers(const char *text, long *numbers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char *end;
        numbers[i] = strtol(text, &end, 10);
        if (end == text)
            return false;
        text = end;
    }
    return true;
}

static int add_fault(struct sim *s, const char *arguments)
{
    enum { OPCODE, QID, SKIP, TIMES, STATUS, DELAY_MS, NUMBERS };
    long n[NUMBERS];
    size_t len = strcspn(arguments, " ");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strlen(kinds[i]) != len || strncmp(arguments, kinds[i], len) != 0)
            continue;
        if (!take_numbers(arguments + len, n, NUMBERS))
            return -1;
        struct sim_fault f = {.kind = (enum sim_fault_kind)i,
                              .match_opcode = n[OPCODE] >= 0,
                              .opcode = (uint8_t)(n[OPCODE] >= 0 ? n[OPCODE] : 0),
                              .qid = (uint16_t)n[QID],
                              .skip = (unsigned)n[SKIP],
                              .times = (unsigned)n[TIMES],
                              .status = (uint16_t)n[STATUS],
                              .delay_ns = (uint64_t)n[DELAY_MS] * 1000000u};
        return sim_add_fault(s, &f);
    }
    return -1;
}

static int obey(struct sim *s, const char *line)
{
    static const char cut[] = "power_cut ";
    long seed;

    if (strncmp(line, "fault ", 6) == 0)
        return add_fault(s, line + 6);
    if (strncmp(line, cut, strlen(cut)) == 0)
        return take_numbers(line + strlen(cut), &seed, 1) ? sim_power_cut(s, (uint64_t)seed) : -1;
    if (strcmp(line, "clear\n") == 0)
        sim_clear_faults(s);
    else if (strcmp(line, "remove\n") == 0)
        sim_remove(s);
    else if (strcmp(line, "stick\n") == 0)
        sim_stick(s);
    else if (strcmp(line, "ask_back\n") == 0)
        sim_request_close(s);
    else
        return -1;
    return 0;
}

/* Held during a command: some commands make the daemon close the drive. */
static pthread_mutex_t at_drive = PTHREAD_MUTEX_INITIALIZER;
static const struct nvme_transport_ops *drive_ops;

static void close_drive(struct nvme_transport *t)
{
    pthread_mutex_lock(&at_drive);
    drive_ops->close(t);
    pthread_mutex_unlock(&at_drive);
}

static void *listen_to_test(void *arg)
{
    char line[256];
    FILE *in = fdopen(dup(STDIN_FILENO), "r");

    while (in && fgets(line, sizeof(line), in)) {
        pthread_mutex_lock(&at_drive);
        int err = obey(arg, line);
        pthread_mutex_unlock(&at_drive);
        dprintf(STDIN_FILENO, "%s\n", err ? "not understood" : "ok");
    }
    if (in)
        fclose(in);
    return NULL;
}

static int free_sim(void *context)
{
    char text[2048];
    bool mistakes = sim_violations(context) != 0;

    sim_violations_text(context, text, sizeof(text));
    if (mistakes)
        log_line(LOG_ERR, "driver mistakes: %s", text);
    sim_free(context);
    return mistakes ? -EPROTO : 0;
}

/* As gpunvmefs does it, before the first thread. */
static int confine(struct options *opts, const struct fuse_args *args, struct mounter *mounter)
{
    struct reason why = {0};
    int err = mounter_start(mounter, opts, args, -1);

    if (!err)
        err = session_listen(opts);
    if (!err)
        err = sandbox_enter(opts, opts->name.path, &why);
    if (err)
        log_line(LOG_ERR, "%s: %s", opts->name.path, why.text[0] ? why.text : strerror(-err));
    return err;
}

static int run(struct options *opts, const struct fuse_args *args)
{
    pthread_t thread;
    struct sim *sim;
    struct mounter mounter;
    struct drive drive = {.release = free_sim};
    struct sim_config config = {.ns[0] = {.path = opts->name.path, .lba_size = 512},
                                .namespaces = 1,
                                .track_cache = true,
                                .no_abort = getenv("PUPPET_NO_ABORT") != NULL,
                                .no_reset = getenv("PUPPET_NO_RESET") != NULL};

    if (confine(opts, args, &mounter) != 0)
        return EXIT_MOUNT;
    int err = sim_create(&config, &sim, &drive.transport);
    if (err) {
        mounter_end(&mounter);
        log_line(LOG_ERR, "%s: %s", opts->name.path, strerror(-err));
        return EXIT_MOUNT;
    }
    drive.context = sim;
    drive_ops = drive.transport->ops;
    struct nvme_transport_ops ops = *drive_ops; /* outlives the session */
    ops.close = close_drive;
    drive.transport->ops = &ops;
    if (getenv("PUPPET_KEEP_DOORBELLS"))
        drive.transport->doorbells_fd = -1;
    /* The thread ends with the process: it blocks on the test. */
    if (pthread_create(&thread, NULL, listen_to_test, sim) == 0)
        pthread_detach(thread);
    return session_run(opts, args, &drive, &mounter, -1);
}

int main(int argc, char **argv)
{
    struct reason why;
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct options opts;
    int status = EXIT_USAGE;

    log_take_libfuse();
    shutdown_block_signals();
    if (options_parse(&opts, &args) != 0)
        log_text(LOG_ERR, opts.problem.text);
    else if (session_check_mountpoint(&opts, &why) != 0)
        log_text(LOG_ERR, why.text);
    else
        status = run(&opts, &args);
    options_free(&opts);
    fuse_opt_free_args(&args);
    return status;
}
