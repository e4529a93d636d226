/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A 32-bit program that lists a directory, for machines without 32-bit
 * libraries: it makes the system calls of i386 itself. Prints the number of
 * names. Exits with the errno that a 32-bit readdir(3) would set, or with 1 if
 * two ways of listing differ.
 *
 * usage: readdir32 DIRECTORY
 */
#include <stdint.h>

enum {
    SYS_EXIT = 1,
    SYS_WRITE = 4,
    SYS_OPEN = 5,
    SYS_LSEEK = 19,
    SYS_STAT = 106,
    SYS_GETDENTS = 141,
    SYS_GETDENTS64 = 220,
};

#define EOVERFLOW_VALUE 75
#define DIRECTORY_FLAG  0200000
#define SOUGHT          7u /* names before the place of a seek */

struct dirent_64 {
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

struct dirent_32 {
    uint32_t ino, off;
    uint16_t reclen;
    char name[];
};

static char buffer[1000];

static int32_t call(int32_t number, int32_t a, int32_t b, int32_t c)
{
    int32_t result;

    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

static void quit(int32_t status)
{
    for (;;)
        call(SYS_EXIT, status, 0, 0);
}

static int32_t check(int32_t result)
{
    if (result < 0)
        quit(-result);
    return result;
}

/*
 * Checks that the entry fits into the 32 bits that glibc returns for positions
 * and inode numbers.
 */
static void check_fits(const struct dirent_64 *e)
{
    if (e->off != (int32_t)e->off || e->ino != (uint32_t)e->ino)
        quit(EOVERFLOW_VALUE);
}

/* Returns the number of names from the current position on, and a position among them. */
static uint32_t count(int32_t fd, int32_t *position)
{
    uint32_t names = 0;
    int32_t n;

    while ((n = check(call(SYS_GETDENTS64, fd, (int32_t)buffer, sizeof(buffer)))) > 0) {
        for (int32_t at = 0; at < n;) {
            const struct dirent_64 *e = (const void *)(buffer + at);
            check_fits(e);
            if (++names == SOUGHT)
                *position = (int32_t)e->off;
            at += e->reclen;
        }
    }
    return names;
}

/* Lists the directory by the older call, whose entries have 32 bits. */
static uint32_t count_old(int32_t fd)
{
    uint32_t names = 0;
    int32_t n;

    while ((n = check(call(SYS_GETDENTS, fd, (int32_t)buffer, sizeof(buffer)))) > 0) {
        for (int32_t at = 0; at < n; names++)
            at += ((const struct dirent_32 *)(const void *)(buffer + at))->reclen;
    }
    return names;
}

static void print(uint32_t n)
{
    char text[12], *at = text + sizeof(text);

    *--at = '\n';
    do {
        *--at = (char)('0' + n % 10);
    } while ((n /= 10) > 0);
    call(SYS_WRITE, 1, (int32_t)at, (int32_t)(text + sizeof(text) - at));
}

/* Called with the initial stack pointer, which points to argc. */
__attribute__((used)) static void run(const int32_t *stack)
{
    int32_t position = 0, unused, fd = check(call(SYS_OPEN, stack[2], DIRECTORY_FLAG, 0));
    uint32_t names = count(fd, &position);

    if (names >= SOUGHT) {
        check(call(SYS_LSEEK, fd, position, 0));
        if (count(fd, &unused) != names - SOUGHT)
            quit(1);
    }
    check(call(SYS_LSEEK, fd, 0, 0));
    if (count_old(fd) != names)
        quit(1);
    check(call(SYS_STAT, stack[2], (int32_t)buffer, 0));
    print(names);
    quit(0);
}

__asm__(".globl _start\n"
        "_start: mov %esp, %eax\n"
        "push %eax\n"
        "call run\n");
