/*
 * What is on a device already: file systems, partition tables and the like.
 */
#ifndef MKFS_SIGNATURE_H
#define MKFS_SIGNATURE_H

#include <stddef.h>

/* 0: nothing known; 1: found, `name` says what; -errno. */
int signature_find(int fd, char *name, size_t size);
/* Removes what signature_find() finds, other than our own. 0 or -errno. */
int signature_wipe(int fd);

#endif
