/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the directories of a tree, sorts its files by use, and removes them. */
#include "support/evict.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "support/array.h"

struct evict_victim {
    struct evict_file file; /* owns the name */
    const struct evict_dir *dir;
};

/* --- Reading --------------------------------------------------------------------------------- */

static int evict_by_ino(const void *a, const void *b)
{
    const struct evict_dir *x = a, *y = b;

    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

/* Adds a directory unless it has been found before. Returns 1 or -ENOMEM. */
static int evict_add_dir(struct evict *e, uint64_t ino, const char *name)
{
    size_t size = strlen(name) + 1;
    struct evict_dir *d = malloc(sizeof(*d) + size);

    if (!d)
        return -ENOMEM;
    *d = (struct evict_dir){.in = e->at, .ino = ino};
    memcpy(d->name, name, size);
    struct evict_dir **found = tsearch(d, &e->seen, evict_by_ino);
    if (!found || *found != d) {
        free(d);
        return found ? 1 : -ENOMEM;
    }
    if (e->last)
        e->last->next = d;
    else
        e->first = d;
    e->last = d;
    return 1;
}

static int evict_by_use(const void *a, const void *b)
{
    const struct evict_file *x = &((const struct evict_victim *)a)->file;
    const struct evict_file *y = &((const struct evict_victim *)b)->file;

    return evict_later(x->used, y->used)   ? 1
           : evict_later(y->used, x->used) ? -1
                                           : strcmp(x->name, y->name);
}

/* Sorts the files by their last use and forgets those after the first `most`. */
static void evict_sort(struct evict *e)
{
    if (e->n_victims)
        qsort(e->victims, e->n_victims, sizeof(e->victims[0]), evict_by_use);
    for (; e->n_victims > e->most; e->n_victims--) {
        free((char *)e->victims[e->n_victims - 1].file.name);
        e->forgot = true;
    }
}

static int evict_add_file(struct evict *e, const struct evict_file *f)
{
    if (e->n_victims / 2 >= e->most)
        evict_sort(e);
    int err = array_grow((void **)&e->victims, e->n_victims, sizeof(*e->victims));
    if (err)
        return err;
    struct evict_victim *v = &e->victims[e->n_victims];
    *v = (struct evict_victim){.file = *f, .dir = e->at};
    v->file.name = strdup(f->name);
    if (!v->file.name)
        return -ENOMEM;
    e->n_victims++;
    return 1;
}

static void evict_forget(struct evict *e)
{
    for (size_t i = 0; i < e->n_victims; i++)
        free((char *)e->victims[i].file.name);
    tdestroy(e->seen, free);
    e->seen = NULL;
    e->first = e->last = e->at = NULL;
    e->n_victims = e->next_victim = 0;
    e->removes = e->entered = e->forgot = false;
}

static int evict_begin_pass(struct evict *e)
{
    evict_forget(e);
    e->bytes = e->files = e->fixed = 0;
    e->removed_before = e->removed_files;
    return evict_add_dir(e, e->root, "");
}

/* Enters the next directory, or begins to remove files after the last one. */
static int evict_next_dir(struct evict *e)
{
    struct evict_dir *dir = e->at ? e->at->next : e->first;

    if (dir) {
        int err = e->ops->enter(e->arg, dir);
        e->at = dir;
        e->entered = !err;
        return err < 0 ? err : 1;
    }
    if (e->ops->aim)
        e->ops->aim(e->arg, e);
    e->removes = true;
    e->at = NULL; /* the entries have been read */
    if (e->bytes <= e->begin)
        return 0;
    evict_sort(e);
    return 1;
}

static int evict_read(struct evict *e)
{
    struct evict_file f = {0};
    int kind = e->ops->next(e->arg, &f);

    if (kind == EVICT_END)
        e->entered = false;
    if (kind == EVICT_DIRECTORY)
        return evict_add_dir(e, f.ino, f.name);
    if (kind != EVICT_FILE && kind != EVICT_FIXED)
        return kind < 0 ? kind : 1;
    e->bytes += f.bytes;
    e->files++;
    if (kind == EVICT_FILE)
        return evict_add_file(e, &f);
    e->fixed += f.bytes;
    return 1;
}

/* --- Removal --------------------------------------------------------------------------------- */

static int evict_enter_again(struct evict *e, const struct evict_dir *dir)
{
    if (dir == e->at)
        return 0;
    int err = e->ops->enter(e->arg, dir);
    e->at = (struct evict_dir *)dir;
    e->entered = !err;
    return err < 0 ? err : 0;
}

static int evict_remove(struct evict *e)
{
    if (e->bytes <= e->end)
        return 0;
    if (e->next_victim == e->n_victims) {
        bool again = e->forgot && e->removed_files > e->removed_before;
        return again ? evict_begin_pass(e) : 0;
    }
    const struct evict_victim *v = &e->victims[e->next_victim++];
    const struct evict_file *f = &v->file;
    int err = evict_enter_again(e, v->dir);
    if (err)
        return err;
    if (!e->entered || !e->ops->remove(e->arg, f))
        return 1;
    e->files--;
    e->bytes -= f->bytes;
    e->removed_files++;
    e->removed_bytes += f->bytes;
    return 1;
}

int evict_step(struct evict *e, unsigned n)
{
    int more = e->first ? 1 : evict_begin_pass(e);

    for (; n > 0 && more == 1; n--)
        more = e->removes ? evict_remove(e) : e->entered ? evict_read(e) : evict_next_dir(e);
    return more;
}

void evict_end(struct evict *e)
{
    e->ops->enter(e->arg, NULL);
    evict_forget(e);
    free(e->victims);
    e->victims = NULL;
}
