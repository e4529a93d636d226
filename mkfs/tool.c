/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the shared functions of the tools for messages, command lines and
 * devices.
 */
#include "mkfs/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <uuid/uuid.h>

#include "support/confine.h"
#include "support/lock_wait.h"
#include "support/number.h"
#include "support/option_words.h"
#include "support/std_files.h"

#define BIT(capability)  (1ull << (capability))
#define TOOL_MAX_OPTIONS 32u      /* of a tool */
#define TOOL_FIRST_KEY   0x100    /* identifies the first option, unless it has a letter */
#define DEADLINE_MAX_MS  3600000u /* the maximum for a mount, too */

int tool_error(const char *object, const char *format, ...)
{
    va_list args;

    /* The lock keeps lines whole even if stderr is shared. */
    flockfile(stderr);
    fprintf(stderr, "%s: %s: ", program_invocation_short_name, object);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    funlockfile(stderr);
    return -1;
}

/* Prints the program's name and version to stdout. */
static void tool_print_version(void)
{
    printf("%s (gpunvmefs) %s\n", program_invocation_short_name, GPUNVME_VERSION);
}

const char *tool_strerror(int err)
{
    switch (err) {
    case -EUCLEAN:
        return "its contents are damaged";
    case -EBUSY:
        return "in use (mounted, or held by another program), unmount it first";
    case -ENOTBLK:
        return "neither a regular file nor a block device";
    case -EIO:
        return "the device reports an error";
    case -ETIMEDOUT:
        return "the device does not answer in time";
    case -EACCES:
        return "access is denied, by permissions or by another host's reservation of the drive";
    case -ERANGE:
        return "the device lacks blocks that it says it has";
    default:
        return strerror(-err);
    }
}

int tool_take_text(void *at, char *value)
{
    *(const char **)at = value;
    return 0;
}

static int set_namespace(void *nsid_at, char *text)
{
    uint64_t nsid;

    if (!number_parse(text, 10, BD_NSID_MAX, &nsid) || nsid == 0)
        return tool_error("--namespace", "'%s' is no namespace id, give a number from 1", text);
    *(uint32_t *)nsid_at = (uint32_t)nsid;
    return 0;
}

static int set_deadline(void *ms_at, char *text)
{
    uint64_t ms;

    if (!number_parse(text, 10, DEADLINE_MAX_MS, &ms) || ms == 0)
        return tool_error("--deadline", "'%s' is no time, give milliseconds from 1 to %u", text,
                          DEADLINE_MAX_MS);
    *(unsigned *)ms_at = (unsigned)ms;
    return 0;
}

static int set_device(struct tool_device *d, const char *text)
{
    struct reason why;

    d->text = text;
    if (bd_name_parse(text, &d->name, &why) != 0)
        return tool_error(text, "%s", why.text);
    if (d->nsid && d->name.nsid_given && d->nsid != d->name.nsid)
        return tool_error(text, "--namespace names another, leave one of them out");
    if (d->nsid && !bd_name_is_ctrlr(&d->name))
        return tool_error(text, "--namespace: this is no controller, leave it out");
    if (d->noiommu && d->name.kind != BD_KIND_VFIO)
        return tool_error(text, "--noiommu is for vfio: devices, leave it out");
    if (d->deadline_ms && !bd_name_is_ctrlr(&d->name))
        return tool_error(text, "--deadline: this is no controller, leave it out");
    if (d->nsid)
        d->name.nsid = d->nsid;
    return 0;
}

enum { TOOL_HELP, TOOL_VERSION };

/* Every tool has these options. Their values are stored in struct tool_device. */
static const struct tool_option tool_common[] = {
    [TOOL_HELP] = {.name = "help"},
    [TOOL_VERSION] = {.letter = 'V', .name = "version"},
    {'N', "namespace", .at = offsetof(struct tool_device, nsid), .take = set_namespace},
    {.name = "noiommu", .at = offsetof(struct tool_device, noiommu)},
    {.name = "deadline", .at = offsetof(struct tool_device, deadline_ms), .take = set_deadline},
};
#define TOOL_COMMON (sizeof(tool_common) / sizeof(tool_common[0]))

/* Returns option i of a tool, or NULL after the last one. */
static const struct tool_option *tool_option(const struct tool_syntax *syntax, size_t i)
{
    const struct tool_option *o =
        i < TOOL_COMMON ? &tool_common[i] : &syntax->options[i - TOOL_COMMON];

    return o->letter || o->name ? o : NULL;
}

/* Returns what getopt_long() returns for option i. */
static int tool_key(const struct tool_option *o, size_t i)
{
    return o->letter ? o->letter : TOOL_FIRST_KEY + (int)i;
}

/* Describes the options in the form of getopt_long(3). */
static void tool_describe(const struct tool_syntax *syntax, char *letters, struct option *names)
{
    const struct tool_option *o;

    for (size_t i = 0; (o = tool_option(syntax, i)); i++) {
        if (o->letter)
            letters += sprintf(letters, o->take ? "%c:" : "%c", o->letter);
        if (o->name)
            *names++ = (struct option){o->name, o->take ? required_argument : no_argument, NULL,
                                       tool_key(o, i)};
    }
    *names = (struct option){0};
}

/* Prints completions for a shell, which completes DEVICE itself, like a file. */
static void tool_complete(const struct tool_syntax *syntax, int argc, char **argv)
{
    struct option_words words[TOOL_MAX_OPTIONS];
    const struct tool_option *o;
    size_t n = 0;

    for (; (o = tool_option(syntax, n)); n++) {
        char text[64] = {'-', o->letter};
        if (o->name)
            snprintf(text, sizeof(text), "--%s", o->name);
        words[n] = (struct option_words){.name = o->name,
                                         .letter = o->letter,
                                         .has_value = o->take != NULL,
                                         .list = o->list,
                                         .values = o->values,
                                         .help = option_words_help(syntax->usage, text)};
    }
    option_words_print(words, n, argc > 3 ? argv[argc - 2] : "", argc > 2 ? argv[argc - 1] : "");
}

/*
 * Takes the option that getopt_long() has returned as c. Returns -1 to continue,
 * or the exit status.
 */
static int tool_take(const struct tool_syntax *syntax, int c, void *options,
                     struct tool_device *device)
{
    const struct tool_option *o;
    size_t i = 0;

    while ((o = tool_option(syntax, i)) && tool_key(o, i) != c)
        i++;
    if (!o) /* getopt_long() has reported the error */
        return syntax->usage_status;
    char *at = (char *)(i < TOOL_COMMON ? (void *)device : options) + o->at;
    if (o->take)
        return o->take(at, optarg) == 0 ? -1 : syntax->usage_status;
    if (i == TOOL_HELP)
        fputs(syntax->usage, stdout);
    else if (i == TOOL_VERSION)
        tool_print_version();
    else
        *(bool *)at = true;
    return i <= TOOL_VERSION ? EXIT_SUCCESS : -1;
}

int tool_parse(const struct tool_syntax *syntax, int argc, char **argv, void *options,
               struct tool_device *device)
{
    char letters[2 * TOOL_MAX_OPTIONS + 1] = "";
    struct option names[TOOL_MAX_OPTIONS + 1];
    int status = -1, c;

    if (std_files_fill() != 0)
        return syntax->usage_status;
    if (option_words_requested(argc, argv)) {
        tool_complete(syntax, argc, argv);
        return EXIT_SUCCESS;
    }
    tool_describe(syntax, letters, names);
    while (status < 0 && (c = getopt_long(argc, argv, letters, names, NULL)) != -1)
        status = tool_take(syntax, c, options, device);
    if (status >= 0)
        return status;
    if (argc - optind != 1) {
        tool_error("arguments", "one DEVICE is needed, see --help");
        return syntax->usage_status;
    }
    return set_device(device, argv[optind]) == 0 ? -1 : syntax->usage_status;
}

static void say_wait(const char *path)
{
    tool_error(path, "unmounted, waiting for the last writes of its daemon");
}

/*
 * Returns the capabilities to keep: for memory, like the daemon, and for an
 * image of another user.
 */
static uint64_t tool_capabilities(const struct tool_device *d)
{
    uint64_t kept = BIT(CAP_IPC_LOCK) | BIT(CAP_SYS_RESOURCE) | BIT(CAP_DAC_OVERRIDE);

    return d->noiommu ? kept | BIT(CAP_SYS_RAWIO) | BIT(CAP_SYS_ADMIN) : kept;
}

static int tool_confine(void *arg, struct reason *why)
{
    static bool confined; /* a second tool_open() runs in the sandbox of the first */
    const struct tool_device *d = arg;
    const struct confine_path paths[] = {
        {bd_name_is_ctrlr(&d->name) ? NULL : d->name.path, CONFINE_READ | CONFINE_WRITE},
        {d->reads, CONFINE_READ},
        {d->noiommu ? "/proc/self" : NULL, CONFINE_READ}};

    (void)why;
    if (!confined && !d->removes)
        confine_program(paths, sizeof(paths) / sizeof(paths[0]), tool_capabilities(d));
    confined = true;
    return 0;
}

int tool_open(const struct tool_device *d, uint32_t flags, struct bd_opened *out)
{
    struct reason why;
    const struct bd_open_opts opts = {.noiommu = d->noiommu,
                                      .deadline_ms = d->deadline_ms,
                                      .opened = tool_confine,
                                      .arg = (void *)d};

    if (!bd_name_is_ctrlr(&d->name) &&
        (flags & (BD_OPEN_EXCLUSIVE | BD_OPEN_READ_ONLY)) != BD_OPEN_READ_ONLY)
        lock_wait(d->name.path, flags & BD_OPEN_EXCLUSIVE ? LOCK_EX : LOCK_SH, say_wait);
    if (d->noiommu)
        tool_error(d->text, "warning: without an IOMMU the drive can write to any memory of this "
                            "machine");
    ffs_mmp_prepare(); /* reads a file of /proc, which the sandbox hides */
    if (bd_open(&d->name, flags, 0, &opts, out, &why) != 0)
        return tool_error(d->text, "cannot open: %s", why.text);
    return 0;
}

void tool_log(int level, const char *line)
{
    if (level > LOG_WARNING)
        return;
    flockfile(stderr);
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, line);
    funlockfile(stderr);
}

/* The writes of the tool fail from now on, and it ends. */
static void say_lost(void *arg, const char *what, int err)
{
    const struct tool_device *d = arg;

    tool_error(d->text, "%s: %s; nothing more is written", what, strerror(-err));
}

int tool_hold(const struct tool_device *d, struct bd_dev *dev, bool (*interrupted)(void),
              struct ffs_mmp **out)
{
    struct reason why = {0};
    const struct ffs_mmp_opts opts = {.read_only = dev->info.read_only,
                                      .tool = true,
                                      .interrupted = interrupted,
                                      .log = tool_log,
                                      .lost = say_lost,
                                      .arg = (void *)d};

    return ffs_mmp_take(dev, &opts, out, &why) ? tool_error(d->text, "%s", why.text) : 0;
}

int tool_no_file_system(const char *path, const struct lay_labels *labels, int err)
{
    switch (err) {
    case -EINVAL:
        return tool_error(path, "holds no gpunvmefs file system, check the name of the device");
    case -ENOTSUP:
        if (labels->features)
            return tool_error(
                path, "has unknown incompatible features 0x%" PRIx64 ", use a newer version",
                labels->features);
        return tool_error(path, "%s", labels->why);
    case -EUCLEAN:
        if (labels->copies[0].error && labels->copies[1].error)
            return tool_error(path, "label: %s, and no usable copy was found", labels->why);
        return tool_error(path, "%s, nothing is written", labels->why);
    case -ERANGE:
        return tool_error(path, "%s", labels->why);
    default:
        return tool_error(path, "cannot read: %s", tool_strerror(err));
    }
}

void tool_print_uuid(FILE *out, const char *key, const uint8_t uuid[16])
{
    char text[UUID_STR_LEN];

    uuid_unparse_lower(uuid, text);
    fprintf(out, "%s: %s\n", key, text);
}
