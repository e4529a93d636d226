/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The probe for libblkid on an image, with libblkid's part of the work.
 *
 * usage: probe_image IMAGE    (status 0: recognised, 1: not, 2: no such image)
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc32c.h"
#include "superblocks.h"

struct blkid_struct_probe {
    unsigned char block[4096];
    uint64_t size;
};

uint32_t crc32c(uint32_t crc, const void *buf, size_t size)
{
    const unsigned char *at = buf;

    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return crc;
}

unsigned char *blkid_probe_get_buffer(blkid_probe pr, uint64_t off, uint64_t len)
{
    return off + len <= sizeof(pr->block) ? pr->block + off : NULL;
}

int blkid_probe_verify_csum(blkid_probe pr, uint64_t csum, uint64_t expected)
{
    (void)pr;
    return csum == expected;
}

int blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len)
{
    (void)pr;
    printf("LABEL=%.*s\n", (int)len, (const char *)label);
    return 0;
}

int blkid_probe_set_uuid_as(blkid_probe pr, const unsigned char *uuid, const char *name)
{
    (void)pr;
    printf("%s=", name);
    for (unsigned i = 0; i < 16; i++)
        printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    putchar('\n');
    return 0;
}

int blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid)
{
    return blkid_probe_set_uuid_as(pr, uuid, "UUID");
}

int blkid_probe_sprintf_version(blkid_probe pr, const char *fmt, ...)
{
    va_list args;

    (void)pr;
    va_start(args, fmt);
    printf("VERSION=");
    vprintf(fmt, args);
    putchar('\n');
    va_end(args);
    return 0;
}

int blkid_probe_set_block_size(blkid_probe pr, unsigned block_size)
{
    (void)pr;
    printf("BLOCK_SIZE=%u\n", block_size);
    return 0;
}

static int load(const char *name, struct blkid_struct_probe *probe)
{
    struct stat st;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;

    if (fd >= 0 && fstat(fd, &st) == 0)
        n = pread(fd, probe->block, sizeof(probe->block), 0);
    if (fd >= 0)
        close(fd);
    probe->size = n == (ssize_t)sizeof(probe->block) ? (uint64_t)st.st_size : 0;
    return probe->size ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct blkid_struct_probe probe;
    const struct blkid_idmag *mag = &gpunvme_idinfo.magics[0];

    if (argc != 2 || load(argv[1], &probe) != 0)
        return 2;
    if (probe.size < (uint64_t)gpunvme_idinfo.minsz ||
        memcmp(probe.block + mag->sboff, mag->magic, mag->len) != 0)
        return 1;
    if (gpunvme_idinfo.probefunc(&probe, mag) != BLKID_PROBE_OK)
        return 1;
    printf("TYPE=%s\n", gpunvme_idinfo.name);
    return 0;
}
