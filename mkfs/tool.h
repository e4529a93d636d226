/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the shared functions of the tools for messages, command lines and devices. */
#ifndef MKFS_TOOL_H
#define MKFS_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "blockdev/device.h"
#include "fusefs/core/ffs.h"
#include "mkfs/image.h"

/* Prints "PROGRAM: OBJECT: error, next step" to stderr. Returns -1. */
int tool_error(const char *object, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Describes an -errno of blockdev or layout. */
const char *tool_strerror(int err);

/* Holds the DEVICE of a command line and the options for opening the device. */
struct tool_device {
    const char *text; /* as given */
    struct bd_name name;
    uint32_t nsid; /* --namespace; 0 if not given */
    bool noiommu;
    unsigned deadline_ms; /* --deadline; 0 if not given */
    const char *reads;    /* another file that the tool opens for reading, or NULL */
    bool removes;         /* the tool may remove the device, a file that it has created */
};

/*
 * These two strings are the usage text for the options that every tool has. A
 * tool can insert its own options between the two strings.
 */
#define TOOL_USAGE                                                                      \
    "  -N, --namespace=N      namespace of the controller (default: 1)\n"               \
    "      --noiommu          drive a vfio: device that no IOMMU guards: it can then\n" \
    "                         write to any memory of the machine\n"                     \
    "      --deadline=MS      time for each answer of a controller (default: 10000)\n"
#define TOOL_USAGE_END                                      \
    "  -V, --version          print the version and exit\n" \
    "      --help             print this and exit\n"

/*
 * Describes an option. An option without take() is a flag and sets the bool at
 * offset `at` of the tool's options. Otherwise take() receives the address of
 * that place and the value. take() returns 0, or -1 after it has printed a
 * message.
 */
struct tool_option {
    char letter;      /* 0 if it has only a name */
    const char *name; /* NULL if it has only a letter */
    size_t at;
    int (*take)(void *at, char *value);
    const char *values; /* words that shells offer for the value, separated by spaces; or NULL */
    bool list;          /* the value has several of them, separated by commas */
};
/* Implements tool_option.take for a text, which a const char * refers to. */
int tool_take_text(void *at, char *value);

/* Describes the command line of a tool: options, then one DEVICE. */
struct tool_syntax {
    const char *usage;
    const struct tool_option *options; /* {0} ends them */
    int usage_status;                  /* exit status after an error */
};

/*
 * Parses a command line. Returns -1 with *device filled, or the exit status if
 * the program must end.
 */
int tool_parse(const struct tool_syntax *syntax, int argc, char **argv, void *options,
               struct tool_device *device);
/*
 * Opens the device, and prints an error. Returns 0 or -1. flags are BD_OPEN_*.
 * Before it reads the device, the tool enters a sandbox (confine.h) in which it
 * can open only this device and d->reads. If d->removes is set, the tool
 * has just made the device and enters no sandbox, since no one else wrote to it.
 */
int tool_open(const struct tool_device *d, uint32_t flags, struct bd_opened *out);

/* Prints warnings and errors of the file system: ffs_mount_opts.log. */
void tool_log(int level, const char *line);
/*
 * Takes the device against other hosts, for a tool that changes it, or looks who
 * uses it if the device is read-only (ffs_mmp_take()). *out may be NULL. Returns 0,
 * or -1 after a message.
 */
int tool_hold(const struct tool_device *d, struct bd_dev *dev, bool (*interrupted)(void),
              struct ffs_mmp **out);

/* Reports the error of image_start(). Returns -1. */
int tool_no_file_system(const char *path, const struct lay_labels *labels, int err);
/* Prints "KEY: UUID". */
void tool_print_uuid(FILE *out, const char *key, const uint8_t uuid[16]);

#endif
