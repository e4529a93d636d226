/* SPDX-License-Identifier: BSD-2-Clause */
/* dump.gpunvme shows the objects of a file system as text or JSON. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/ffs.h"
#include "mkfs/dump_tree.h"
#include "mkfs/tool.h"

#define SCHEMA_VERSION 1
#define EXIT_USAGE     2
#define NOT_ASKED      UINT64_MAX

struct options {
    struct tool_device device;
    bool super, journal, json;
    uint64_t inode, extents, directory; /* number of the inode to show, or NOT_ASKED */
};

/* The device, and the parts read on the way to the requested object. */
struct dump {
    const struct options *o;
    struct image img;
    struct image_super super;
    struct lay_super sb; /* after recovery */
    struct lay_journal header;
    struct log log;
    struct json_object *tree;
    bool shown; /* the tree holds more than the entries common to all */
};

static const char usage_text[] =
    "usage: dump.gpunvme [OPTION]... DEVICE\n"
    "Shows what is in the gpunvmefs file system on DEVICE, as it is after recovery. DEVICE\n"
    "is an image file, a block device, vfio:ADDRESS[/NSID] or vfio-user:SOCKET.\n"
    "\n"
    "  -s, --superblock       the superblock (the default)\n"
    "  -i, --inode=INO        an inode and the names of its extended attributes\n"
    "  -e, --extents=INO      the extents of a file; inode 0 is the inode file\n"
    "  -d, --directory=INO    the names in a directory; inode 1 is the root\n"
    "  -j, --journal          the transactions in the journal\n"
    "  -o, --output=FORMAT    text or json\n" TOOL_USAGE TOOL_USAGE_END;

static const struct option long_options[] = {
    {"superblock", no_argument, NULL, 's'},
    {"inode", required_argument, NULL, 'i'},
    {"extents", required_argument, NULL, 'e'},
    {"directory", required_argument, NULL, 'd'},
    {"journal", no_argument, NULL, 'j'},
    {"output", required_argument, NULL, 'o'},
    TOOL_LONG_OPTIONS,
};

static int set_inode(uint64_t *ino, const char *text)
{
    if (tool_parse_number(text, ino) != 0 || *ino == NOT_ASKED)
        return tool_error("options", "'%s' is not an inode number", text);
    return 0;
}

static int set_output(struct options *o, const char *text)
{
    o->json = strcmp(text, "json") == 0;
    if (!o->json && strcmp(text, "text") != 0)
        return tool_error("--output", "'%s' is not a format, use text or json", text);
    return 0;
}

static int dump_set_option(void *options, int c)
{
    struct options *o = options;

    switch (c) {
    case 's':
        o->super = true;
        return 0;
    case 'i':
        return set_inode(&o->inode, optarg);
    case 'e':
        return set_inode(&o->extents, optarg);
    case 'd':
        return set_inode(&o->directory, optarg);
    case 'j':
        o->journal = true;
        return 0;
    case 'o':
        return set_output(o, optarg);
    default:
        return -1;
    }
}

static const struct tool_syntax syntax = {usage_text, "si:e:d:jo:" TOOL_SHORT_OPTIONS, long_options,
                                          dump_set_option, EXIT_USAGE};

/* Returns -1 to continue, or the exit status. */
static int dump_parse_arguments(int argc, char **argv, struct options *o)
{
    int status = tool_parse(&syntax, argc, argv, o, &o->device);
    bool any =
        o->journal || o->inode != NOT_ASKED || o->extents != NOT_ASKED || o->directory != NOT_ASKED;

    o->super = o->super || !any;
    return status;
}

/*
 * Replays the journal in memory, so that all other objects are read as after
 * recovery.
 */
static int dump_recover(struct dump *d)
{
    union lay_block b;
    struct lay_geometry geo;
    const char *why = NULL;
    int err = image_read_raw(&d->img, d->img.geo.journal_start, &b);

    if (!err)
        err = lay_check_journal(&d->img.geo, &b.journal, &why);
    if (err == -EUCLEAN) {
        tool_error(d->o->device.text, "journal header: damaged (%s), shown without recovery", why);
        return err;
    }
    if (err)
        return err;
    d->header = b.journal;
    err = replay_read(&d->img, &d->header, &d->log);
    if (!err)
        err = replay_replay(&d->img, &d->log);
    if (!err)
        err = image_read(&d->img, 0, &b);
    if (!err && lay_check_super(&b.super, 0, d->img.device_blocks, &geo, NULL, NULL) == 0 &&
        lay_same_shape(&geo, &d->img.geo))
        d->sb = b.super;
    return err;
}

static int dump_explain(const struct options *o, const char *what, int err)
{
    switch (err) {
    case 0:
        return 0;
    case -ENOENT:
        return tool_error(o->device.text, "%s: no such inode in use", what);
    case -ENOTDIR:
        return tool_error(o->device.text, "%s: not a directory", what);
    case -EUCLEAN:
        return tool_error(o->device.text, "%s: damaged, run fsck.gpunvme", what);
    default:
        return tool_error(o->device.text, "%s: %s", what, tool_strerror(err));
    }
}

/* Adds an object to the tree. Reports the error of one that could not be read. */
static int dump_add(struct dump *d, const char *key, struct json_object *value, int err)
{
    bool empty = json_object_is_type(value, json_type_array)
                     ? json_object_array_length(value) == 0
                     : json_object_object_length(value) == 0;

    if (err && empty) {
        json_object_put(value);
    } else {
        json_object_object_add(d->tree, key, value);
        d->shown = true;
    }
    return dump_explain(d->o, key, err);
}

static int dump_collect(struct dump *d)
{
    const struct options *o = d->o;
    struct json_object *to;
    int failed = 0;

    dump_put_number(d->tree, "schema_version", SCHEMA_VERSION);
    dump_put_string(d->tree, "device", o->device.text);
    dump_put_number(d->tree, "recovered_transactions", d->log.transaction_count);
    if (o->super) {
        dump_super(&d->sb, to = json_object_new_object());
        failed |= dump_add(d, "superblock", to, 0);
    }
    if (o->inode != NOT_ASKED) {
        to = json_object_new_object();
        failed |= dump_add(d, "inode", to, dump_inode(&d->img, &d->sb, o->inode, to));
    }
    if (o->extents != NOT_ASKED) {
        to = json_object_new_array();
        failed |= dump_add(d, "extents", to, dump_extents(&d->img, &d->sb, o->extents, to));
    }
    if (o->directory != NOT_ASKED) {
        to = json_object_new_array();
        failed |= dump_add(d, "directory", to, dump_directory(&d->img, &d->sb, o->directory, to));
    }
    if (o->journal) {
        dump_journal(&d->header, &d->log, to = json_object_new_object());
        failed |= dump_add(d, "journal", to, 0);
    }
    return failed;
}

static int dump_start(struct dump *d, struct bd_dev *dev)
{
    const char *path = d->o->device.text;
    char why[384];

    if (ffs_ours(dev, false, why, sizeof(why)) != 0)
        return tool_error(path, "%s", why);
    int err = image_start(&d->img, dev, false, &d->super);
    if (err == -EINVAL)
        return tool_error(path, "holds no gpunvmefs file system, check the name of the device");
    if (err == -ENOTSUP)
        return tool_error(path, "has features or a version that this program does not know");
    if (err == -EUCLEAN)
        return tool_error(path, "superblock: %s, and no usable copy was found", d->super.why);
    if (err)
        return tool_error(path, "cannot read: %s", tool_strerror(err));
    d->sb = d->super.sb;
    if (d->super.addr != 0)
        tool_error(path, "superblock: %s%s%s, using the copy in block %llu",
                   d->super.error ? "damaged (" : "older than a copy",
                   d->super.error ? d->super.why : "", d->super.error ? ")" : "",
                   (unsigned long long)d->super.addr);
    return 0;
}

static int dump_device(const struct options *o, struct bd_dev *dev)
{
    struct dump *d = calloc(1, sizeof(*d));

    if (!d)
        return -1;
    d->o = o;
    d->tree = json_object_new_object();
    int failed = dump_start(d, dev);
    if (!failed) {
        int err = dump_recover(d);
        failed = err && err != -EUCLEAN ? dump_explain(o, "journal", err) : err;
        failed |= dump_collect(d);
        if (d->shown && o->json)
            dump_print_json(d->tree);
        else if (d->shown)
            dump_print_text(d->tree);
    }
    json_object_put(d->tree);
    replay_free(&d->log);
    image_end(&d->img);
    free(d);
    return failed;
}

int main(int argc, char **argv)
{
    struct options o = {.inode = NOT_ASKED, .extents = NOT_ASKED, .directory = NOT_ASKED};
    struct bd_opened opened;
    int status = dump_parse_arguments(argc, argv, &o);

    if (status >= 0)
        return status;
    if (tool_open(&o.device, BD_OPEN_READ_ONLY, &opened) != 0)
        return EXIT_FAILURE;
    int failed = dump_device(&o, opened.dev);
    bd_opened_close(&opened);
    return failed || fflush(stdout) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
